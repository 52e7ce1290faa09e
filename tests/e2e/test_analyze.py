"""`compress analyze` through the real command line, at toy scale."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from e2e_toy import Cli, write_rows

from compress.analyze.sentence_vectors import texts_of
from compress.data.reading.sources import open_table
from compress.encoder.reshape.students import take_layers
from compress.modelfolder.folder import inspect, load_model, save_model
from compress.predict.embedder import Embedder
from compress.storage.safe import load_safetensors


def words(folder: Path) -> Path:
    """Sentences whose words are tagged: the, and all others."""
    texts = ("the film was good", "the plot was not bad", "she said the actor liked it", "he never liked the film")
    rows = [{"tokens": t.split(), "ner_tags": ["THE" if w == "the" else "O" for w in t.split()]} for t in texts]
    for split, times in (("train", 6), ("validation", 1), ("test", 2)):
        write_rows(folder / f"{split}.jsonl", rows * times)
    return folder


def test_layers_of_a_model_and_of_the_one_it_was_made_from(own_model: Path, compress: Cli) -> None:
    parent = load_model(own_model)
    cut = take_layers(parent.model, [0, 1, 4, 5])
    save_model(Path("cut/model"), cut, tokenizer_files=parent.tokenizer_files, meta=parent.meta)
    words(Path("tagged"))
    done = compress(
        "analyze", "cut/model", "--against", "mine", "--data", "data", "--probe", "tagged", "--output", "seen",
        "--threads", "1", "--save-embedder", "embedder", "--dimensions", "5", "--quantization",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "sentence embedder (whitened to 5): embedder; use it with compress predict embedder --embeddings" in done.out
    assert "is preserved least: CKA" in done.out
    assert "linear probes on" in done.out
    table = json.loads(Path("seen/lost.json").read_text(encoding="utf-8"))
    assert [row[0] for row in table["data"]] == ["emb", "0", "1", "2", "3", "4", "5"]
    assert table["data"][1] == ["0", "0", "1.000"], "the first layers are the same ones"
    assert "int8 products: the largest error is " in done.out
    errors = json.loads(Path("seen/quantization-errors.json").read_text(encoding="utf-8"))
    assert len(errors["data"]) == 4 * 6
    assert "1.feed_forward.up" in [row[0] for row in errors["data"]]
    plots = ("cka", "cka-without-outliers", "cka-against", "anisotropy", "cosines", "probe-tagged")
    for name in (*plots, "quantization-ranges", "quantization-errors-static"):
        assert Path(f"seen/{name}.svg").read_text(encoding="utf-8").startswith("<svg")
    assert len(json.loads(Path("seen/anisotropy.json").read_text(encoding="utf-8"))["data"]) == 5
    probed = json.loads(Path("seen/probe-tagged.json").read_text(encoding="utf-8"))
    assert [row[0] for row in probed["data"]] == ["emb", "0", "1", "2", "3"]
    table = json.loads(Path("seen/sentences.json").read_text(encoding="utf-8"))
    assert [row[:2] for row in table["data"]][1] == ["whitened to 5", "5"]
    _embeds(compress)
    assert [parent.name for parent in inspect(Path("embedder")).meta.lineage] == ["cut"]
    done = compress("analyze", "cut/model", "--data", "data", "--output", "seen")
    assert (done.code, "the output folder exists" in done.line) == (3, True)


def _embeds(compress: Cli) -> None:
    """The folder gives the vectors that were fitted, also read back by another program's rules."""
    texts = ["the film was good", "he never liked the plot"]
    done = compress("predict", "embedder", "--embeddings", "--json", *texts)
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["text"] for row in rows] == texts
    Path("rows.jsonl").write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)))
    done = compress("predict", "embedder", "--embeddings", "--json", "--file", "rows.jsonl")
    assert [json.loads(line) for line in done.out.splitlines()] == [{"id": i, **row} for i, row in enumerate(rows)]
    Path("rows.jsonl").write_text('{"txt": "a"}\n')
    done = compress("predict", "embedder", "--embeddings", "--file", "rows.jsonl")
    assert done.line == "error: rows.jsonl:1: the row has no text; did you mean 'txt'?"
    plain = Embedder(Path("cut/model"))
    assert plain.width == 16
    weights = load_safetensors("embedder/2_Dense/model.safetensors")
    wanted = plain.compute_pooled(texts) @ weights["linear.weight"].T + weights["linear.bias"]
    np.testing.assert_allclose([row["embedding"] for row in rows], wanted, rtol=1e-3, atol=1e-4)
    training = Embedder(Path("embedder"))(texts_of(open_table("data").split("train"), 5000))
    np.testing.assert_allclose(np.cov(training.T), np.eye(5), atol=1e-2)
    done = compress("predict", "embedder", texts[0])
    assert len(done.out.partition("\t")[0].split()) == 5, "its vectors are what it predicts"
    modules = json.loads(Path("embedder/modules.json").read_text(encoding="utf-8"))
    assert [m["type"].rpartition(".")[2] for m in modules] == ["Transformer", "Pooling", "Dense"]


def test_what_cannot_be(own_model: Path, compress: Cli) -> None:
    done = compress("analyze", "mine")
    assert (done.code, done.line) == (
        2,
        "error: --data: text data is required; give a built-in dataset, a file or a folder",
    )
    bad = {
        ("analyze", "mine", "--data", "data", "--components", "2"): "--components: only applies to remove-top",
        ("predict", "mine", "a text", "--embeddings", "--pair", "b"): "--pair: does not apply to embeddings",
        ("predict", "mine", "--embeddings"): "no input text",
    }
    for flags, message in bad.items():
        done = compress(*flags)
        assert done.code == 2
        assert message in done.line


@pytest.mark.parametrize("flag", ["--output", "--save-embedder"])
def test_a_place_that_cannot_be_written_is_found_before_the_work(
    flag: str, own_model: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compress.analyze.run.open_subject", lambda *_: pytest.fail("the model was opened"))
    Path("file").touch()
    done = compress("analyze", own_model, "--data", "data", flag, "file/below")
    assert (done.code, done.line.startswith("error: file/below: ")) == (2, True), done.err
