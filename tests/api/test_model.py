"""`compress.load` and what the model that it returns does."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import compress
from compress.contracts import Needs

TEXTS = ["the film was good", "i think the plot was bad"]


def test_predict_gives_an_answer_for_each_text(classifier: compress.Model) -> None:
    answers = classifier.predict(TEXTS)
    assert [answer.as_json()["label"] in ("negative", "positive") for answer in answers] == [True, True]
    assert classifier.predict(TEXTS[0]) == answers[:1]
    assert classifier.label_names == ["negative", "positive"]


def test_predict_reads_strings(classifier: compress.Model) -> None:
    assert classifier.predict([]) == []
    with pytest.raises(compress.UserError, match=r"text 2 of 2 is not a string: it is None \(NoneType\)"):
        classifier.predict(["good", None])  # type: ignore[list-item]
    with pytest.raises(compress.UserError, match=r"second texts as first ones: 2 and 1"):
        classifier.predict(["good", "bad"], ["one"])


def test_an_empty_text_is_an_error_as_in_the_commands(classifier: compress.Model) -> None:
    calls: dict[str, Callable[[], object]] = {
        "text: it is empty": lambda: classifier.predict([""]),
        "text 2: it is empty": lambda: classifier.predict(["good", " \n"]),
        "second text 1: it is empty": lambda: classifier.predict(["good", "bad"], ["", "one"]),
        "document 3: it is empty": lambda: classifier.rank("good", ["one", "two", ""]),
        "query: it is empty": lambda: classifier.rank("", ["one"]),
        "text 1: it is empty": lambda: classifier.embed(["", "good"]),
        "second text: it is empty": lambda: classifier.batches("good", "\t"),
    }
    for message, ask in calls.items():
        with pytest.raises(compress.UserError) as caught:
            ask()
        assert caught.value.line() == message


def test_the_fastest_runtime_answers_alike(
    classifier: compress.Model, splits: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    fastest = compress.load(classifier.path, device="cpu", runtime="auto")
    expected = classifier.predict(TEXTS)
    assert [one.as_json()["label"] for one in fastest.predict(TEXTS)] == [one.as_json()["label"] for one in expected]
    assert capsys.readouterr() == ("", "")
    assert fastest.evaluate(splits["test"], bootstrap=100, no_speed=True, quiet=True).metrics


def test_batches_are_what_the_module_reads(classifier: compress.Model) -> None:
    (batch,) = classifier.batches(TEXTS)
    with torch.no_grad():
        logits = classifier.torch_module(batch, Needs(logits=True)).logits
    assert logits is not None
    chances = logits.softmax(-1)[batch.row_ids.argsort()]
    expected = [list(answer.as_json()["probabilities"].values()) for answer in classifier.predict(TEXTS)]
    assert torch.allclose(chances, torch.tensor(expected), atol=1e-5)


def test_embed_gives_a_vector_for_each_text(classifier: compress.Model) -> None:
    vectors = classifier.embed(TEXTS)
    assert vectors.shape == (2, classifier.config.hidden)
    assert vectors.dtype == np.float32


def test_evaluate_measures_every_row_it_is_given(classifier: compress.Model, splits: Any) -> None:
    result = classifier.evaluate(splits["test"], bootstrap=100, quiet=True)
    (values,) = result.metrics.values()
    right = sum(
        answer.as_json()["label"] == row["label"]
        for answer, row in zip(classifier.predict([r["text"] for r in splits["test"]]), splits["test"], strict=True)
    )
    assert values["quality/accuracy"] == pytest.approx(right / len(splits["test"]))
    assert result["models"][0]["context"]["rows"] == "24"
    assert result.run_id is None
    assert "accuracy" in repr(result)


def test_evaluate_against_another_model(classifier: compress.Model, splits: Any) -> None:
    result = classifier.evaluate(splits, against=classifier.save("copy"), bootstrap=100, quiet=True)
    ours = result.to_dict()["models"][1]["values"]
    assert ours["vs_teacher/agreement_pct"] == 100


def test_evaluate_without_speed_times_nothing(classifier: compress.Model, splits: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("compress.measure.cost.measure_interleaved", None)
    result = classifier.evaluate(splits, against=classifier.save("copy"), bootstrap=100, no_speed=True, quiet=True)
    ours = result.to_dict()["models"][1]
    assert ours["values"]["vs_teacher/size_ratio"] == 1
    assert ours["values"]["speed/gflops"] > 0
    assert not [name for name in ours["values"] if "latency" in name or "speedup" in name or "throughput" in name]
    assert "clock" not in ours["context"]


@pytest.mark.parametrize("other", [{"length": 8}, {"robustness": "typos"}])
def test_what_no_speed_cannot_go_with(classifier: compress.Model, splits: Any, other: dict[str, Any]) -> None:
    with pytest.raises(compress.UserError, match=r"^no_speed=True: "):
        classifier.evaluate(splits, no_speed=True, quiet=True, **other)


def test_benchmark_times_models_in_turn(classifier: compress.Model) -> None:
    result = classifier.benchmark(classifier.save("copy"), length=8, repeats=5, quiet=True)
    assert all("memory/peak_mb" in values for values in result.metrics.values())
    assert len(result.metrics) == 2


def test_save_copies_the_folder_once(classifier: compress.Model) -> None:
    copy = classifier.save("copy")
    assert copy.predict(TEXTS) == classifier.predict(TEXTS)
    with pytest.raises(compress.UserError, match="exists already"):
        classifier.save("copy")


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="needs the extra onnx")
def test_export_writes_a_file_that_answers_the_same(classifier: compress.Model) -> None:
    exported = classifier.export("onnx", quiet=True)
    assert exported.path == Path("classifier-onnx")
    assert (exported.path / "model.onnx").is_file()
    answers = compress.load(exported, runtime="onnxruntime", device="cpu").predict(TEXTS)
    assert [a.as_json()["label"] for a in answers] == [a.as_json()["label"] for a in classifier.predict(TEXTS)]


def test_a_model_of_transformers_is_written_once(place: Path, toy_tokenizer_files: dict[str, bytes]) -> None:
    transformers = pytest.importorskip("transformers")
    (place / "tokenizer").mkdir()
    for name, content in toy_tokenizer_files.items():
        (place / "tokenizer" / name).write_bytes(content)
    tokenizer = transformers.AutoTokenizer.from_pretrained("tokenizer")
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=32, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1},
    )  # fmt: skip
    network = transformers.BertForSequenceClassification(config).eval()
    model = compress.load(network, tokenizer, device="cpu")
    with torch.no_grad():
        expected = network(**tokenizer(TEXTS[0], return_tensors="pt")).logits.softmax(-1)[0]
    found = model.predict(TEXTS[0])[0].as_json()["probabilities"]
    assert [found["no"], found["yes"]] == pytest.approx(expected.tolist(), abs=1e-5)
    assert compress.load((network, tokenizer)).path == model.path
    with pytest.raises(compress.UserError, match="needs its tokenizer"):
        compress.load(network)


def test_what_is_no_model_is_said(place: Path) -> None:
    with pytest.raises(compress.UserError, match="model folder 'nothing' not found"):
        compress.load("nothing")
    with pytest.raises(compress.UserError, match="a value of type int is not a model"):
        compress.load(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "device: 'gpu' is not a device; use auto, cpu, cuda"),
        ({"runtime": "ort"}, "runtime: 'ort' is not a runtime; use auto, torch, torch-int8"),
        ({"precision": "int4"}, "precision: 'int4' is not a precision; use auto, fp32, bf16"),
    ],
)
def test_how_a_model_cannot_be_loaded(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(compress.UserError) as error:
        compress.Model(tmp_path, **options)
    assert error.value.line().startswith(message)


def test_texts_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(compress.UserError, match=r"texts: not a text or a list of them: it is None \(NoneType\)"):
        compress.Model(tmp_path).predict(None)  # type: ignore[arg-type]
