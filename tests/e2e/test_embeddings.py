"""Sentence embeddings through the commands: evaluated on texts, pairs and searches, cut, quantized, distilled,
exported."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import torch.nn.functional as F
from e2e_toy import Cli, write_rows
from example_counts import thorough_but
from long_text import check_limits
from safetensors.torch import load_file
from sentence_folders import TEXTS, as_sentence_transformers, check_carried, vectors
from wordpiece import make_wordpiece_files

from compress.api.model import load
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.modules.model import Model
from compress.fit.cost import block_table
from compress.modelfolder.folder import inspect, load_model, save_model
from compress.modelfolder.sentence_files import sentence_files
from compress.onnx.session import OnnxSession
from compress.predict.embedder import Embedder
from compress.predict.predictor import Predictor

HIDDEN = 16
WORDS = ("film", "good", "bad", "plot", "actor", "never", "liked", "she", "very")
DATA = ("--data", "texts.txt", "--threads", "1")
FIDELITY = ("vs_teacher/neighbour_overlap_10", "vs_teacher/similarity_rank_correlation")


@pytest.fixture
def mine(own_model: Path) -> Path:
    """`mine`, an encoder of 6 layers that sentence-transformers would embed with, and plain text in `texts.txt`."""
    loaded = load_model(own_model, keep=())
    shutil.rmtree(own_model)
    save_model(own_model, loaded.model, tokenizer_files=loaded.tokenizer_files)
    rows = itertools.islice(itertools.combinations_with_replacement(WORDS, 4), 0, None, 2)  # 248 texts
    Path("texts.txt").write_text("".join(" ".join(words) + "\n" for words in rows), encoding="utf-8")
    return as_sentence_transformers(own_model, HIDDEN, pooling="mean")


def without_prompts(folder: Path) -> None:
    """Queries and documents are read alike."""
    (folder / "config_sentence_transformers.json").write_text("{}")


def figures(done: object, place: int = -1) -> dict[str, float]:
    return json.loads(done.out)["models"][place]["values"]  # type: ignore[attr-defined]


def same_vectors(folder: Path, wanted: Path, texts: list[str] = TEXTS) -> None:
    """The task's answers are the vectors that the folder's files mean, and those of another folder."""
    found = np.stack([answer.vector for answer in Predictor(folder).predict(texts)])
    np.testing.assert_allclose(found, vectors(folder, texts), atol=1e-5)
    np.testing.assert_allclose(found, vectors(wanted, texts), atol=1e-5)


# --- evaluate -----------------------------------------------------------------------------------------------------


def test_texts_alone_are_compared_with_the_parent(mine: Path, compress: Cli) -> None:
    shutil.copytree(mine, "same")
    alone = compress("evaluate", mine, *DATA, "--json")
    assert alone.code == 0, alone.err
    assert not [name for name in figures(alone) if name.startswith(("quality/", "vs_teacher/"))]
    done = compress("evaluate", "same", "--against", mine, *DATA, "--json")
    assert done.code == 0, done.err
    found = figures(done)
    assert found["quality/cosine"] == pytest.approx(1, abs=1e-6)
    assert [found[name] for name in FIDELITY] == pytest.approx([1, 1])
    assert {"quality/cosine_low", "quality/cosine_high", f"{FIDELITY[0]}_low"} <= found.keys()


def test_pairs_and_searches_have_their_metrics(mine: Path, compress: Cli) -> None:
    texts = Path("texts.txt").read_text().splitlines()
    pairs = [{"a": a, "b": b, "similarity": i % 5 + 0.5} for i, (a, b) in enumerate(itertools.pairwise(texts))]
    write_rows(Path("scored/test.jsonl"), pairs)
    named = ("--text-column", "a", "--text-pair-column", "b", "--threads", "1", "--json")
    done = compress("evaluate", mine, "--data", "scored", *named)
    assert done.code == 0, done.err
    assert -1 <= figures(done)["quality/spearman"] <= 1

    without_prompts(mine)
    found = [{"a": text, "b": text, "negative": other} for text, other in zip(texts, texts[::-1], strict=True)]
    write_rows(Path("searched/test.jsonl"), found)
    done = compress("evaluate", mine, "--data", "searched", *named)
    assert done.code == 0, done.err
    values = figures(done)  # each text finds itself
    assert {values[f"quality/{name}"] for name in ("ndcg_at_10", "mrr_at_10", "recall_at_1")} == {1.0}

    done = compress("evaluate", mine, "--data", "searched", *named, "--metric", "spearman")
    assert (done.code, done.line) == (
        2,
        "error: data.metric: spearman has no figure on retrieval; use ndcg_at_10 or mrr_at_10 or recall_at_1 or "
        "recall_at_10 or recall_at_100",
    )
    done = compress("evaluate", mine, "--data", "searched", *named, "--metric", "recall@10")
    assert done.code == 0, done.err


def test_a_search_in_the_layout_of_beir(mine: Path, compress: Cli) -> None:
    texts = Path("texts.txt").read_text().splitlines()[:20]
    write_rows(Path("beir/corpus.jsonl"), [{"_id": f"d{i}", "title": "", "text": t} for i, t in enumerate(texts)])
    write_rows(Path("beir/queries.jsonl"), [{"_id": f"q{i}", "text": t} for i, t in enumerate(texts[:8])])
    Path("beir/qrels").mkdir()
    judged = [f"q{i}\td{i}\t2" for i in range(6)] + ["q0\td7\t1"]
    Path("beir/qrels/test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
    prompted = figures(compress("evaluate", mine, "--data", "beir", "--threads", "1", "--json"))
    without_prompts(mine)
    done = compress("evaluate", mine, "--data", "beir", "--threads", "1", "--json")
    assert done.code == 0, done.err
    values = figures(done)
    assert prompted["quality/mrr_at_10"] != values["quality/mrr_at_10"]  # queries and documents have other prompts
    assert values["quality/mrr_at_10"] == 1.0
    assert values["quality/recall_at_1"] == pytest.approx((5 + 0.5) / 6)  # one query has two documents
    assert json.loads(done.out)["models"][0]["context"]["rows"] == "6"


def test_documents_are_ranked_for_a_query(mine: Path, compress: Cli) -> None:
    texts = Path("texts.txt").read_text().splitlines()[:20]
    query = (mine, "--query", texts[7], "--file", "few.txt", "--top", "3", "--threads", "1", "--json")
    Path("few.txt").write_text("\n".join(texts) + "\n")

    def ranked() -> list[tuple[str, float]]:
        done = compress("predict", *query)
        assert done.code == 0, done.err
        return [(row["document"], row["score"]) for row in map(json.loads, done.out.splitlines())]

    prompted = ranked()
    without_prompts(mine)
    assert ranked() != prompted, "queries and documents have other prompts"
    assert ranked()[0] == (texts[7], pytest.approx(1, abs=1e-5))
    found = load(mine).rank(texts[7], texts)
    of_each = load(mine).embed(texts)
    cosines = (of_each @ of_each[7]) / np.linalg.norm(of_each, axis=1) / np.linalg.norm(of_each[7])
    np.testing.assert_allclose([one.score for one in found], np.sort(cosines)[::-1], atol=1e-5)
    assert [(one.document, pytest.approx(one.score)) for one in found[:3]] == ranked()


def test_a_prompt_is_chosen_by_its_name(mine: Path, compress: Cli) -> None:
    whole = [f"passage: {text}" for text in TEXTS]
    wanted = load(mine).embed(whole)
    np.testing.assert_array_equal(load(mine).embed(TEXTS, prompt="document"), wanted)
    Path("few.txt").write_text("\n".join(TEXTS) + "\n")
    row = ("predict", mine, "--file", "few.txt", "--threads", "1", "--json", "--prompt")
    for flags in ((), ("--embeddings",)):
        done = compress(*row, "document", *flags)
        assert done.code == 0, done.err
        found = [json.loads(line)["embedding"] for line in done.out.splitlines()]
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    done = compress(*row, "documents")
    assert (done.code, done.line) == (
        2,
        f"error: {mine}: the model has no prompt 'documents'; did you mean 'document'?",
    )
    done = compress("predict", mine, "--query", "a", "b", "--prompt", "document")
    assert (done.code, done.line) == (2, "error: --prompt: cannot be combined with --query; remove it")


def test_a_prompt_of_a_model_for_another_task(own_model: Path, compress: Cli) -> None:
    done = compress("predict", own_model, "a", "--prompt", "query")
    assert (done.code, done.out) == (2, "")
    assert "only embedding models read prompts: the task of the model is classification" in done.line
    done = compress("predict", own_model, "a", "--embeddings", "--prompt", "query")
    assert "the model has no prompt 'query'; there are none" in done.line


# --- the verbs ----------------------------------------------------------------------------------------------------


def result(done: object) -> Path:
    assert done.code == 0, done.err  # type: ignore[attr-defined]
    (made,) = (line.split()[1] for line in done.out.splitlines() if line.startswith("model "))  # type: ignore[attr-defined]
    return Path(made)


def test_cut_quantize_export(mine: Path, compress: Cli) -> None:
    done = compress("prune-layers", mine, *DATA, "--keep", "4", "--no-recover", "--output", "runs/cut")
    cut = result(done)
    assert "scoring parent on" in done.err, "nothing taught it"
    assert inspect(cut).config.depth == 4
    check_carried(cut, mine, same_model=False)
    same_vectors(cut, cut)
    pytest.importorskip("onnxruntime")
    small = result(compress("quantize", cut, *DATA, "--no-sensitivity", "--output", "runs/small"))
    check_carried(small, mine, same_model=False)
    done = compress("evaluate", small, "--against", mine, *DATA, "--json")
    assert done.code == 0, done.err
    assert 0 < figures(done)["quality/cosine"] < 1
    assert figures(done)["vs_teacher/size_ratio"] > 1
    in_file = np.stack([answer.vector for answer in Predictor(small, runtime="onnxruntime").predict(TEXTS)])
    asked = ((), ("--embeddings",), ("--embeddings", "--runtime", "onnxruntime"))
    told = [compress("predict", small, TEXTS[0], "--json", *flags).out for flags in asked]
    assert told[0] == told[1] == told[2] != "", "the flag asks for what an embedding model answers anyway"
    assert np.array_equal(load(small).embed(TEXTS), in_file), "as it is deployed, not simulated"


CUT = {
    "prune-vocab": ("--min-count", "1"),
    "factorize": ("--keep", "0.6", "--no-recover"),
    "share": ("--groups", "2", "--pattern", "cka", "--embedding-size", "8", "--residual-rank", "2", "--no-recover"),
    "sparsify": ("--no-recover",),
    "prune-width": ("--keep", "0.5", "--no-recover"),
}


@pytest.mark.parametrize("verb", thorough_but(["prune-vocab"], CUT))
def test_verbs_that_need_text_only(mine: Path, compress: Cli, verb: str) -> None:
    made = result(compress(verb, mine, *DATA, *CUT[verb], "--output", "runs/made"))
    check_carried(made, mine, same_model=False)
    same_vectors(made, made)
    done = compress("evaluate", made, "--against", mine, *DATA, "--json")
    assert done.code == 0, done.err
    cosine = figures(done)["quality/cosine"]
    if verb == "prune-vocab":  # of texts whose tokens all stay nothing changes
        assert cosine == pytest.approx(1, abs=1e-6)
        assert inspect(made).config.vocabulary < inspect(mine).config.vocabulary
    else:
        assert 0 < cosine < 1


RECOVERED = [("factorize", ("--keep", "0.3")), ("prune-layers", ("--keep", "2")), ("quantize", ("--mode", "qat"))]


@pytest.mark.parametrize(("verb", "flags"), thorough_but(RECOVERED[1:2], RECOVERED))
def test_recovery_training_is_of_vectors(mine: Path, compress: Cli, verb: str, flags: tuple[str, ...]) -> None:
    short = ("--epochs", "1", "--set", "stages.1.training.learning_rate=1e-3", "--output", "runs/made")
    shown = compress(verb, mine, *DATA, *flags, *short, "--print-recipe", "--json")
    assert shown.code == 0, shown.err
    (taught,) = (stage for stage in json.loads(shown.out)["stages"] if stage["kind"] == "distill")
    kinds = [one["kind"] for one in taught["objectives"]]
    assert kinds[:3] == ["vectors", "vector_similarity", "cosine_hidden"]
    assert not {"soft_targets", "hard_labels"} & set(kinds)
    made = result(compress(verb, mine, *DATA, *flags, *short))
    check_carried(made, mine, same_model=False)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which every fit of `mine` finds the blocks that the first one built."""
    return tmp_path_factory.mktemp("blocks")


@pytest.fixture
def block_times(blocks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("COMPRESS_CACHE", str(blocks))
    monkeypatch.setattr(block_table, "_least", lambda calls, *_: ([1.0 + 0.1 * i for i in range(len(calls))], False))


@pytest.mark.usefixtures("block_times")
@pytest.mark.parametrize("asked", [None, pytest.param("cosine", marks=pytest.mark.thorough)])
def test_fit_plans_by_the_vectors(mine: Path, compress: Cli, asked: str | None) -> None:
    flags = ("--length", "16", "--runtime", "onnxruntime", "--plans", "1", "--max-mb", "0.03", "--uncertified")
    chosen = () if asked is None else ("--metric", asked)
    done = compress("fit", mine, *DATA, *flags, *chosen, "--output", "runs/fit", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)["certificate"]
    assert told["size_mb"] <= 0.03
    assert told["quality"]["metric"] == (asked or "neighbour_overlap_10")
    assert 0 < told["quality"]["value"] <= 1
    assert told["quality"]["labels"] == "the parent's answers"
    assert "nats" not in done.err
    made = Path("runs/fit/model")
    check_carried(made, mine, same_model=False)
    done = compress("evaluate", made, "--against", mine, *DATA, *chosen, "--json")
    assert done.code == 0, done.err


@pytest.mark.thorough
@pytest.mark.usefixtures("block_times")
def test_fit_trains_its_candidates_by_the_vectors(mine: Path, compress: Cli) -> None:
    flags = ("--length", "16", "--runtime", "onnxruntime", "--plans", "1", "--max-mb", "0.03", "--uncertified")
    trained = ("--train", "full", "--steps", "4", "--output", "runs/fit", "--json")
    done = compress("fit", mine, *DATA, *flags, *trained)
    assert done.code == 0, done.err
    assert "skipped" not in done.err, "every training came to its end"
    found = json.loads(done.out)["plans"]
    names = [one["name"] for one in found]
    assert any("recovery steps" in name for name in names), names
    assert any("of them quantized" in name for name in names), names
    check_carried(Path("runs/fit/model"), mine, same_model=False)


def test_an_exported_file_gives_vectors_and_the_states_that_are_pooled(mine: Path, compress: Cli) -> None:
    pytest.importorskip("onnxruntime")
    done = compress("export", mine, "--output", "out", "--threads", "1")
    assert done.code == 0, done.err
    check_carried(Path("out"), mine)
    ours, file = Predictor(Path("out")), Predictor(Path("out"), runtime="onnxruntime")
    for a, b in zip(ours.predict(TEXTS), file.predict(TEXTS), strict=True):
        np.testing.assert_allclose(a.vector, b.vector, atol=1e-5)
    session = OnnxSession(Path("out/model.onnx")).session
    assert [entry.name for entry in session.get_outputs()] == ["last_hidden_state", "sentence_embedding"]
    done = compress("export", mine, "--writer", "torch", "--output", "other", "--threads", "1")
    assert done.code == 2, done.out
    done = compress("export", mine, "--to", "hf", "--output", "hf", "--threads", "1")
    assert done.code == 0, done.err
    assert "smallest cosine 1.000000" in done.out, "vectors agree in no class"
    same_vectors(Path("hf"), mine)


@pytest.mark.parametrize("pooling", thorough_but(["weightedmean"], ["max", "weightedmean", "lasttoken"]))
def test_poolings_of_sentence_transformers(mine: Path, compress: Cli, pooling: str) -> None:
    pytest.importorskip("onnxruntime")
    folder = as_sentence_transformers(mine, HIDDEN, pooling=pooling)
    same_vectors(folder, folder)
    done = compress("export", folder, "--output", "out", "--threads", "1")
    assert done.code == 0, done.err
    check_carried(Path("out"), folder)
    file = Predictor(Path("out"), runtime="onnxruntime").predict(TEXTS)
    np.testing.assert_allclose(np.stack([answer.vector for answer in file]), vectors(folder, TEXTS), atol=1e-5)


def test_distil_on_plain_text(mine: Path, compress: Cli) -> None:
    flags = ("--recipe", "embed-distil", "--teacher", "mine", *DATA, "--output", "runs/distilled")
    short = ("--set", "data.max_length=24", "--set", "stages.0.training.batch_rows=8")
    made = result(compress("distill", *flags, *short))
    assert inspect(made).config.depth == 3
    check_carried(made, mine, same_model=False)
    same_vectors(made, made)
    untrained = ("--set", "stages.0.student.init=random", "--set", "stages.0.training.learning_rate=1e-9")
    start = result(compress("distill", *flags[:-1], "runs/start", *short, *untrained))
    other = ("--set", "stages.0.student.init=random", "--set", "stages.0.training.learning_rate=0.01")
    trained = result(compress("distill", *flags[:-1], "runs/trained", *short, *other))
    before, after = (
        figures(compress("evaluate", folder, "--against", mine, *DATA, "--json"))["quality/cosine"]
        for folder in (start, trained)
    )
    assert before < after


@pytest.mark.parametrize("dense", [None, 12])
@pytest.mark.parametrize("student", ["narrower", "another"])
def test_a_student_of_another_hidden_size_gets_a_dense_module(
    mine: Path, compress: Cli, student: str, dense: int | None
) -> None:
    as_sentence_transformers(mine, HIDDEN, pooling="mean", dense=dense)
    start = ["student.hidden=8"]
    if student == "another":
        loaded, config = load_model(mine, keep=()), inspect(mine).config
        wider = EncoderConfig.uniform(vocabulary=config.vocabulary, hidden=24, layers=2, heads=2, feed_forward=32)
        save_model(Path("wider"), Model(wider, {}).initialize(5), tokenizer_files=loaded.tokenizer_files)
        start = ["student.model=wider", "student.layers=[0, 1]"]
    short = ["data.max_length=24", "training.batch_rows=8", "training.learning_rate=1e-9"]
    named = [v if v.startswith("data.") else f"stages.0.{v}" for v in (*start, *short)]
    words = ("distill", "--recipe", "embed-distil", "--teacher", "mine", *DATA, "--steps", "1", "--output", "runs/near")
    done = compress(*words, *(word for value in named for word in ("--set", value)))
    made = result(done)
    assert inspect(made).heads["task"].labels == (dense or HIDDEN)
    fitted = dense is None or student == "another"  # a narrowed student keeps the teacher's Dense module
    assert ("initialized by least squares on 200 texts" in done.err) == fitted, done.err
    assert "randomly initialized" not in done.err
    assert "1 projection of hidden states initialized by least squares" in done.err
    same_vectors(made, made)
    check_limits(made)
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(str(made), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), vectors(made, TEXTS), atol=1e-5)
    near = figures(compress("evaluate", made, "--against", mine, *DATA, "--json"))["quality/cosine"]
    assert near > 0.5, "the Dense module starts near the teacher's vectors"


def test_vectors_from_a_column_of_the_data(mine: Path, compress: Cli, toy_vocabulary: list[str]) -> None:
    """A student with its own tokenizer and hidden size comes near vectors that it sees no model of."""
    done = compress(
        "predict", mine, "--file", "texts.txt", "--output", "read", "--join", "read.jsonl", "--threads", "1"
    )
    assert done.code == 0, done.err
    files = make_wordpiece_files(toy_vocabulary[:5] + toy_vocabulary[:4:-1])  # the same pieces under other numbers
    own = EncoderConfig.uniform(vocabulary=len(toy_vocabulary), hidden=24, layers=2, heads=2, feed_forward=32)
    save_model(Path("own"), Model(own, {}).initialize(5), tokenizer_files=files)
    common = ("--recipe", "embed-vectors", "--student", "own", "--data", "read.jsonl", "--threads", "1")
    words = (*common, "--teacher-column", "embedding", "--max-length", "24", "--batch-size", "8")
    done = compress("distill", *words, "--steps", "120", "--learning-rate", "3e-3", "--output", "runs/own", "--json")
    assert done.code == 0, done.err
    assert "vectors of 16 dimensions in column embedding" in done.err
    assert "a Dense module maps them to the teacher's 16" in done.err
    (student,) = json.loads(done.out)["models"]
    found = student["values"]
    assert found["quality/cosine"] > 0.9
    assert {*FIDELITY} <= found.keys()
    assert (found["rows/labelled"], found["rows/teacher_labelled"]) == (0, 200)
    (note,) = (line for line in json.loads(done.out)["notes"] if "columns of the data" in line)
    assert "agreement" not in note
    made = Path("runs/own/student")
    same_vectors(made, made)
    measured = figures(compress("evaluate", made, "--against", mine, *DATA, "--json"))
    assert measured["quality/cosine"] > 0.9, "evaluated beside the model that computed them"

    alone = ("--set", "stages.0.objectives=[{kind: vector_similarity}]", "--steps", "2", "--output", "runs/alone")
    done = compress("distill", *words, *alone, "--json")
    assert done.code == 0, done.err
    assert inspect(Path("runs/alone/student")).heads["task"].labels == 24, "similarities need no common width"
    found = json.loads(done.out)["models"][0]["values"]
    assert "quality/cosine" not in found
    assert {*FIDELITY} <= found.keys()

    done = compress("distill", *common, "--output", "out", "--teacher-column", "embeding")
    assert (done.code, done.line) == (
        2, "error: read.jsonl: teacher column 'embeding' not found: neither the training rows nor the unlabelled ones "
        "have it; did you mean 'embedding'?",
    )  # fmt: skip
    hidden = "stages.0.objectives=[{kind: vectors}, {kind: cosine_hidden}]"
    done = compress("distill", *words, "--output", "out", "--set", hidden)
    assert done.code == 2
    assert "reads more of the teacher than its vectors" in done.line
    assert "as in recipe embed-vectors" in done.line
    assert not Path("out").exists()


def test_shorter_vectors_of_a_stage_before_are_not_widened_again(mine: Path, compress: Cli) -> None:
    words = ("reduce-dimensions", "mine", *DATA, "--recipe", "embed-matryoshka", "--dimensions", "8", "--output", "out")
    done = compress(*words, "--steps", "2", "--set", "stages.1.objectives=[{kind: vectors}]")
    assert done.code == 2
    told = "objective vectors compares vectors of one width: the student's have 8 dimensions, the teacher's 16"
    assert told in done.line


def test_what_is_not_supported_is_rejected_before_any_work(mine: Path, compress: Cli) -> None:
    told = {
        ("prune-width", "mine", *DATA, "--hidden-size", "8"): "narrower hidden states are not supported",
        ("prune-width", "mine", *DATA, "--keep", "0.5", "--importance", "taylor"): "needs labels",
        ("finetune", "--model", "mine", "--data", "data", "--task", "embedding"): "is not trained on labels",
        ("factorize", "mine", *DATA, "--set", "stages.1.objectives=[{kind: soft_targets, on: task}]"): (
            "objective soft_targets needs the outputs of a task head"
        ),
        ("prune-layers", "mine", *DATA, "--keep", "4", "--criterion", "taylor", "--no-recover"): "needs labels",
        ("calibrate", "mine", *DATA): "does not support embedding",
        ("predict", "mine", "a text", "--pair", "another"): "needs single texts",
        ("evaluate", "mine", "--data", "pairs", "--text-column", "first", "--text-pair-column", "second"): (
            "holds labels of pairs, not scores"
        ),
    }
    for words, line in told.items():
        out = () if words[0] in ("predict", "evaluate") else ("--output", "out")
        done = compress(*words, *out)
        assert done.code == 2, (words, done.err)
        assert line in done.line, (words, done.line)
        assert not Path("out").exists()


def test_an_embedder_can_still_be_fine_tuned_for_a_task(mine: Path, compress: Cli) -> None:
    made = result(compress("finetune", "--model", mine, "--data", "data", "--threads", "1", "--output", "runs/tuned"))
    assert inspect(made).heads["task"].kind == "classification"


# --- a real model -------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_minilm_keeps_its_vectors(minilm: Path, tmp_path: Path) -> None:
    """all-MiniLM-L6-v2 as a task, and saved and read again."""
    loaded = load_model(minilm)
    beside = sentence_files(minilm, loaded.config)
    made = save_model(
        tmp_path / "made", loaded.model, tokenizer_files=loaded.tokenizer_files, meta=loaded.meta, beside=beside
    )
    same_vectors(made, minilm)


# --- a static model -----------------------------------------------------------------------------------------------


def test_a_static_model_of_token_vectors(mine: Path, compress: Cli) -> None:
    start = result(compress("make-static", mine, *DATA, "--dimensions", "6", "--no-recover", "--output", "runs/start"))
    made = result(compress("make-static", mine, *DATA, "--dimensions", "6", "--steps", "2", "--output", "runs/static"))
    for folder in (start, made):
        modules = json.loads((folder / "modules.json").read_text())
        assert [row["type"].rpartition(".")[2] for row in modules] == ["StaticEmbedding", "Normalize"]
        table = load_file(folder / "model.safetensors")["embeddings"]
        assert table.dtype is torch.float16
        assert table.shape[1] == 6
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        texts = [*TEXTS, "film " * 200, ""]  # no text is cut
        ids = [encoded.ids for encoded in tokenizer.encode_batch(texts, add_special_tokens=False)]
        wanted = [F.normalize(table.float()[row].sum(0), dim=0) for row in ids]
        np.testing.assert_allclose(Embedder(folder)(texts), torch.stack(wanted).numpy(), atol=1e-5)
        np.testing.assert_allclose(
            [answer.vector for answer in Predictor(folder).predict(texts)], torch.stack(wanted).numpy(), atol=1e-5
        )
        silent = [tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]", "[UNK]", "[PAD]")]
        assert not table[silent].any()
    assert not torch.equal(*(load_file(folder / "model.safetensors")["embeddings"] for folder in (start, made)))
    done = compress("evaluate", made, "--against", mine, *DATA, "--json")
    assert done.code == 0, done.err
    assert 0 < figures(done)[FIDELITY[0]] <= 1

    done = compress("prune-layers", made, *DATA, "--keep", "1", "--no-recover")
    assert done.code == 2
    assert "prune-layers does not work on a static model" in done.line
    done = compress("finetune", "--model", made, "--data", "opinions-qa")
    assert done.code == 2
    assert "finetune does not work on a static model" in done.line
    for command in (
        ("fit", made, *DATA, "--max-mb", "1"),
        ("analyze", made, *DATA),
        ("extend", made, "--max-positions", "64"),
    ):
        done = compress(*command)
        assert done.code == 2
        assert f"{command[0]} needs layers, and a static model has none" in done.line
    done = compress("export", made, "--output", "onnx")
    assert done.code == 2
    assert "a static model has no ONNX file" in done.line
    done = compress("export", made, "--to", "hf", "--output", "stock")
    assert done.code == 2
    assert "no class of transformers computes a static model; use the folder itself" in done.line
    done = compress("make-static", mine, *DATA, "--dimensions", str(HIDDEN + 1), "--no-recover")
    assert (done.code, done.line) == (
        2, f"error: --dimensions 17: 17 dimensions: the vectors of {mine} have 16; give 16 or less"
    )  # fmt: skip
    done = compress("make-static", mine, *DATA, "--dimensions", "8", "--keep-width", "--no-recover")
    assert done.code == 2
    assert "--dimensions and --keep-width together: both set the width of the vectors" in done.line
    made = result(compress("make-static", mine, *DATA, "--keep-width", "--no-recover", "--output", "runs/wide"))
    assert inspect(made).heads["task"].labels == HIDDEN


def test_fewer_dimensions_and_stored_vectors(mine: Path, compress: Cli) -> None:
    cut = result(
        compress("reduce-dimensions", mine, *DATA, "--dimensions", "6", "--no-recover", "--output", "runs/cut")
    )
    assert inspect(cut).heads["task"].labels == 6
    parent, found = vectors(mine, TEXTS), vectors(cut, TEXTS)  # read from the files, a Dense among them
    same_vectors(cut, cut)
    done = compress("reduce-dimensions", mine, *DATA, "--steps", "2", "--output", "runs/whole")
    whole = result(done)
    assert "10 nearest neighbours kept" in done.out
    assert "cosine" not in done.out, "the axes are others than the parent's"
    assert inspect(whole).heads["task"].labels == HIDDEN
    assert found.shape == (len(TEXTS), 6)
    assert parent.shape == (len(TEXTS), HIDDEN)

    asked = ("--vectors", "float32,int8,binary", "--dimensions", "16,8", "--output", "table", "--json")
    done = compress("evaluate", whole, "--against", mine, *DATA, *asked)
    assert done.code == 0, done.err
    rows = json.loads(done.out)["vectors"]
    sizes = [(row["kind"], row["dimensions"], row["bytes_per_vector"]) for row in rows]
    assert sizes == [
        ("float32", 16, 64), ("int8", 16, 16), ("binary", 16, 2), ("float32", 8, 32), ("int8", 8, 8), ("binary", 8, 1),
    ]  # fmt: skip
    assert rows[0]["difference"] is None
    assert all(0 <= row["quality"][0] <= 1 and row["search_ms_per_million"] > 0 for row in rows)
    assert json.loads(Path("table/vectors.json").read_text())["vectors"] == rows
    assert np.shape(rows[1]["int8_ranges"]) == (2, 16)

    done = compress("evaluate", mine, *DATA, "--vectors", "int4")
    assert done.code == 2
    assert done.line.startswith("error: --vectors: no way to store vectors is called 'int4'; ")
    done = compress("evaluate", mine, *DATA, "--vectors", "int8", "--dimensions", "17")
    assert (done.code, done.line) == (
        2, f"error: --dimensions: 17 dimensions: the vectors of {mine} have 16 dimensions; give 1 to 16",
    )  # fmt: skip
    done = compress("reduce-dimensions", mine, *DATA, "--dimensions", "6", "--rows", "5", "--no-recover")
    assert (done.code, done.line) == (
        2, "error: --dimensions 6: 5 texts cannot fit 6 dimensions; give more texts, or 5 dimensions or less",
    )  # fmt: skip
    assert "\nvectors " not in done.err, "no text was embedded"
    done = compress("reduce-dimensions", mine, *DATA, "--dimensions", "17", "--no-recover")
    assert (done.code, done.line) == (
        2, f"error: --dimensions 17: 17 dimensions: the vectors of {mine} have 16; give 16 or less",
    )  # fmt: skip
