"""The functions: each makes a model that answers, with figures, from rows in memory."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from calibratable import make_overconfident
from example_counts import thorough_but
from haste import take_the_machine_for_quiet

import compress
from compress import Model, RunResult
from compress.api import command, verbs
from compress.console import Console
from compress.modelfolder import folder as modelfolder
from compress.training.validation import Validator

TEXT = "the film was good"
QUICK = {
    "evaluation.bootstrap": 100,
    "evaluation.latency": {"length": 16, "warmup": 0, "repeats": 5, "seconds": 1},
    "evaluation.throughput_rows": 16,
}
SHORT = {"steps": 4, "batch_rows": 8, "learning_rate": 1e-3}
HOW: dict[str, Any] = {"set": QUICK, "quiet": True, "max_length": 24, "device": "cpu"}
needs_onnx = pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="needs the extra onnx")


@pytest.mark.store
def test_finetune(classifier: Model, splits: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = list(sys.argv)
    result = compress.finetune(classifier, splits, training=SHORT, output="tuned", **HOW)
    assert sys.argv == arguments
    assert capsys.readouterr().out == "", "it returns, and prints nothing"
    assert result.folder == Path("tuned")
    assert result.model.predict(TEXT)
    assert result.run_id is not None
    assert len(result.run_id) == 32
    assert {"quality/accuracy", "size/disk_mb"} <= set(next(iter(result.metrics.values())))
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()
    record = json.loads(Path("tuned", "compress-run.json").read_text())
    assert record["command"].startswith("compress finetune --")
    with pytest.raises(compress.UserError, match="already contains a run"):
        compress.finetune(classifier, splits, training=SHORT, output="tuned", **HOW)


def test_few_parameters_are_trained_and_groups_compared(classifier: Model, splits: Any) -> None:
    result = compress.finetune(classifier, splits, tune="lora", lora_rank=2, training=SHORT, output="tuned", **HOW)
    trained = next(iter(result.to_dict()["stages"].values()))["trained_parameters"]
    assert 0 < trained < sum(p.numel() for p in modelfolder.load_model("tuned/model").model.parameters()) / 2
    rows = [{"text": TEXT, "label": "positive", "place": str(n % 2)} for n in range(80)]
    measured = result.model.evaluate(rows, group_column="place", bootstrap=100, device="cpu", quiet=True)
    (one,) = measured.to_dict()["models"]
    assert (one["gap"]["groups"], one["values"]["groups/gap"]) == (2, 0.0)


@pytest.fixture
def known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A point of a chart needs a time that is known, which a busy machine may not give."""
    take_the_machine_for_quiet(monkeypatch)


@pytest.mark.usefixtures("known_times")
def test_distill_with_objectives_of_ones_own(classifier: Model, splits: Any) -> None:
    result = compress.distill(
        classifier, splits, student=2, objectives=["soft-targets", {"kind": "hard_labels", "weight": 0.5}],
        training=SHORT, control=False, **HOW,
    )  # fmt: skip
    assert result.model.config.depth == 2
    assert len(result.metrics) == 2
    assert "<svg" in result._repr_html_()
    recipe = Path("runs/distilbert-task/recipe.yaml").read_text()
    assert "weight: 0.5" in recipe
    assert "steps: 4" in recipe


def test_distill_on_text_alone(classifier: Model) -> None:
    """The same folder without its head is a pretrained encoder."""
    loaded = modelfolder.load_model(classifier.path)
    encoder = modelfolder.save_model(
        Path("encoder"), type(loaded.model)(loaded.model.config, {}), tokenizer_files=loaded.tokenizer_files
    )
    Path("texts.txt").write_text("\n\n".join([TEXT, "a plot was bad", "the actor was very good"] * 20))
    length = {"corpus.max_length": 16}
    how: dict[str, Any] = {"recipe": "text-distil", "corpus": "texts.txt", "steps": 2, "quiet": True, "set": length}
    result = compress.distill(encoder, student=[0, 2], output="small", **how)
    assert result.model.config.depth == 2
    with pytest.raises(compress.UserError, match=r"^compress\.distill: no rows and no text; give data, or corpus="):
        compress.distill(classifier)


@pytest.mark.parametrize(
    ("student", "depth"),
    thorough_but(
        [([0, 3], 2)], [([0, 3], 2), ("uniform:1", 1), ({"layers": [1, 2], "hidden": 16, "init": "selection"}, 2)]
    ),
)
def test_students(classifier: Model, splits: Any, student: Any, depth: int) -> None:
    result = compress.distill(classifier, splits, student=student, training=SHORT, control=False, **HOW)
    assert result.model.config.depth == depth


@pytest.mark.parametrize(
    ("student", "names_layers"),
    [("uniform:3", True), ("every-other-from-last:2", True), ("last", True), ([0, 1], True), ("unifrom:3", True),
     ("runs/last", False), ("hf:org/name", False), ("models:/small/1", False)],
)  # fmt: skip
def test_a_student_is_a_rule_or_a_model(student: Any, names_layers: bool) -> None:
    assert verbs._is_layers(student) == names_layers


@pytest.mark.parametrize("student", [True, 0, -1, 2.5, [], [True], ["a"]])
def test_what_is_neither_layers_nor_a_model_is_said(student: Any) -> None:
    with pytest.raises(compress.UserError, match=r"^student: .* is neither layers nor a model; give a number of"):
        compress.distill("teacher", "rows.csv", student=student)


@pytest.mark.parametrize("keyword", ["student", "teacher"])
def test_a_model_that_is_none_is_named_by_its_keyword(keyword: str) -> None:
    models: dict[str, Any] = {"teacher": "teacher", keyword: object()}
    with pytest.raises(compress.UserError, match=f"^{keyword}: a value of type object is not a model"):
        compress.distill(data="rows.csv", **models)


VERBS: dict[str, tuple[Callable[..., RunResult], dict[str, Any]]] = {
    "prune_layers": (compress.prune_layers, {"keep": 2, "criterion": "uniform", "training": SHORT}),
    "prune_layers without recovery": (compress.prune_layers, {"drop": 1, "recover": False}),
    "prune_width": (compress.prune_width, {"target_params": "70%", "importance": "magnitude", "recover": False}),
    "prune_vocab": (compress.prune_vocab, {"coverage": 90}),
    "share": (compress.share, {"groups": 2, "residual_rank": 0, "recover": False}),
    "factorize": (compress.factorize, {"rank": 4, "method": "svd", "allocation": None, "recover": False}),
    "sparsify": (compress.sparsify, {"method": "magnitude", "recover": False}),
    "quantize": (compress.quantize, {"scheme": "per-token", "onnx": False, "sensitivity": False}),
}


@pytest.mark.store
@pytest.mark.parametrize("name", thorough_but(["prune_layers without recovery", "quantize"], VERBS))
def test_verbs(classifier: Model, splits: Any, name: str) -> None:
    verb, values = VERBS[name]
    result = verb(classifier, splits, **values, **HOW)
    assert result.model.predict(TEXT)
    assert len(result.metrics) >= 2
    assert result.run_id


def test_run_of_a_recipe(classifier: Model, splits: Any) -> None:
    result = compress.run("prune-vocab", splits, teacher=classifier, **HOW)
    assert result.verb == "run"
    assert result.model.predict(TEXT)


@pytest.mark.store
@pytest.mark.thorough
@needs_onnx
def test_fit(classifier: Model, splits: Any) -> None:
    result = compress.fit(
        classifier, splits, max_mb=0.06, plans=1, length=16, uncertified=True, runtime="onnxruntime", quiet=True,
        output="small", threads=1, device="cpu",
    )  # fmt: skip
    assert (result.model.path / "model.onnx").stat().st_size <= 60_000
    assert result.certificate is not None
    assert result.certificate["bounds"]["max_mb"] == 0.06
    assert result.run_id
    assert "int8 only" in repr(result)
    assert "<table>" in result._repr_html_()
    with pytest.raises(compress.UserError, match="not certified") as caught:
        compress.fit(
            classifier, {key: rows for key, rows in splits.items() if key != "test"}, max_mb=0.06, plans=1, length=16,
            runtime="onnxruntime", quiet=True, output="again", threads=1, device="cpu",
        )  # fmt: skip
    assert caught.value.result.certificate["status"] == "uncertified"
    assert caught.value.result.model.path == Path("again/model")
    with pytest.raises(compress.UserError, match="max_mb: 'x' is not a size"):
        compress.fit(classifier, splits, max_mb="x")  # type: ignore[arg-type]


def test_an_error_after_the_document_carries_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"model": "small/model", "certificate": {"status": "uncertified"}}

    @click.command()
    @click.option("--json", is_flag=True)
    @click.option("--late", is_flag=True)
    def fake(json: bool, late: bool) -> None:
        if late:
            Console(json=json).document(document)
        raise compress.UserError("not certified")

    monkeypatch.setattr(command.registry, "module", lambda *_: SimpleNamespace(command=fake))
    with pytest.raises(compress.UserError) as caught:
        command.call_for(RunResult, "fit", {"late": True})
    assert isinstance(caught.value.result, RunResult)
    assert (caught.value.result.verb, caught.value.result.to_dict()) == ("fit", document)
    with pytest.raises(compress.UserError) as caught:
        command.call_for(RunResult, "fit", {})
    assert caught.value.result is None


@pytest.mark.usefixtures("known_times")
def test_compare(classifier: Model, splits: Any) -> None:
    result = compress.compare(
        classifier, classifier.save("copy"), data=splits["test"], bootstrap=100, device="cpu", quiet=True
    )
    assert list(result.metrics) == ["classifier", "copy"]
    assert "Pareto" in repr(result)
    assert "<svg" in result._repr_html_()


def test_calibrate_and_extend_write_a_model(classifier: Model) -> None:
    make_overconfident(classifier.path, Path("three-of-four"))
    result = compress.calibrate(classifier, "three-of-four", output="calibrated", device="cpu", quiet=True)
    assert result.model.path == Path("calibrated")
    assert result["before"]["temperature"] == 1.0
    assert "after.temperature" in repr(result)
    (after,), (before,) = (model.predict(TEXT) for model in (result.model, classifier))
    assert after.as_json()["label"] == before.as_json()["label"]
    longer = compress.extend(classifier, 64, output="longer", quiet=True).model
    assert longer.config.max_positions == 64


def test_analyze(classifier: Model, splits: Any) -> None:
    result = compress.analyze(classifier, splits, rows=16, output="looked", device="cpu", quiet=True)
    columns, rows = result.tables["cka"]
    assert "CKA" in columns
    assert len(rows) == 25
    assert "<table>" in result._repr_html_()
    assert list(Path("looked").glob("*.svg"))


@pytest.mark.store
def test_promote_and_verify(classifier: Model) -> None:
    result = compress.promote(classifier, "champion", name="opinions", quiet=True)
    assert result["version"] == "1"
    assert compress.load("models:/opinions@champion").predict(TEXT)
    with pytest.raises(compress.UserError, match=r"no certificate\.json"):
        compress.verify(classifier)


def test_tokenizer_and_pretrain(place: Path, splits: Any) -> None:
    lines = [row["text"] + " ." for row in splits["train"]]
    Path("corpus.txt").write_text("\n\n".join("\n".join(lines[i : i + 4]) for i in range(0, 48, 4)), encoding="utf-8")
    sizes = {"stages.0.vocabulary_size": 120, "stages.0.min_frequency": 1}
    made = compress.tokenizer("corpus.txt", set=sizes, output="words", quiet=True)
    assert made.folder == Path("words")
    assert Path("words/model/tokenizer.json").is_file()
    shape = {"hidden": 16, "layers": 2, "heads": 2, "feed_forward": 32, "max_positions": 32}
    small = {f"stages.1.encoder.{key}": value for key, value in shape.items()}
    made = compress.pretrain(
        "corpus.txt", tokenizer="words/model", recipe="smoke-teacher", training=SHORT, set={**QUICK, **small},
        output="new", quiet=True,
    )  # fmt: skip
    assert made.model.config.depth == 2
    further = compress.pretrain("corpus.txt", model=made.model, training=SHORT, set=QUICK, output="more", quiet=True)
    assert further.model.config == made.model.config


def test_errors_name_the_keyword(classifier: Model, splits: Any) -> None:
    with pytest.raises(compress.UserError, match=r"prune_layers: unknown keyword 'kep'; did you mean 'keep'\?"):
        compress.prune_layers(classifier, splits, kep=2)
    with pytest.raises(compress.UserError, match="training: not a dictionary"):
        compress.finetune("m", "opinions", training=[5])  # type: ignore[arg-type]
    with pytest.raises(compress.UserError, match=r"^set: not a dictionary"):
        compress.distill("m", "opinions", set=["a=1"])  # type: ignore[arg-type]
    with pytest.raises(compress.UserError, match=r"^objectives: not a list"):
        compress.distill("m", "opinions", objectives="soft_targets")
    with pytest.raises(compress.UserError, match="objectives: 0: neither a kind nor a dictionary"):
        compress.distill("m", "opinions", objectives=[5])  # type: ignore[list-item]
    with pytest.raises(compress.UserError, match="target_params: '500%' is not a share below 100%"):
        compress.prune_width("m", "opinions", target_params="500%")
    with pytest.raises(compress.UserError, match="recipe prune-vocab has no training"):
        compress.run("prune-vocab", splits, teacher=classifier, training=SHORT)


@pytest.mark.parametrize(
    ("function", "arguments", "keyword"),
    [
        ("tokenizer", {"corpus": ["a text"]}, "corpus"),
        ("pretrain", {"corpus": None}, "corpus"),
        ("prune_vocab", {"model": "m", "data": "d", "corpus": ["a text"]}, "corpus"),
        ("distill", {"teacher": "m", "data": "d", "recipe": None}, "recipe"),
        ("run", {"recipe": 5}, "recipe"),
        ("finetune", {"model": "m", "data": "d", "output": 5}, "output"),
        ("extend", {"model": "m", "max_positions": 1024, "output": None}, "output"),
        ("convert", {"model": 5, "output": "new"}, "model"),
    ],
)
def test_what_is_no_path_is_named(function: str, arguments: dict[str, Any], keyword: str) -> None:
    with pytest.raises(compress.UserError, match=f"^{keyword}: a value of type [A-Za-z]+ is not a path; give a string"):
        getattr(compress, function)(**arguments)


def test_a_result_without_one_model() -> None:
    with pytest.raises(compress.UserError, match="the result is not a single model"):
        _ = RunResult("finetune", {"seeds": [0, 1]}).model


def test_a_traceback_ends_where_the_api_begins(classifier: Model, splits: Any) -> None:
    """A notebook shows every frame and cause: those of click and of the recipe help nobody who misspelt a value."""
    with pytest.raises(compress.UserError, match="cannot keep 9 of 4 layers") as caught:
        compress.prune_layers(classifier, splits, keep=9, recover=False, quiet=True)
    files = [Path(str(entry.path)) for entry in caught.traceback[1:]]
    assert {file.parent.name for file in files} == {"api"}
    assert caught.value.__cause__ is None


def test_an_interrupt_says_in_one_frame_how_to_go_on(
    classifier: Model, splits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell of a notebook that was interrupted showed 22 frames, and not how the training continues."""
    note = Validator.note

    def interrupt_after(self: Validator, metrics: dict[str, float], *, keep_best: bool) -> None:
        note(self, metrics, keep_best=keep_best)
        signal.raise_signal(signal.SIGINT)

    def train(**more: Any) -> RunResult:
        return compress.finetune(
            classifier, splits, training={"steps": 3, "batch_rows": 8, "validate_every": 1}, output="tuned", **HOW,
            **more,
        )  # fmt: skip

    with monkeypatch.context() as patch:
        patch.setattr(Validator, "note", interrupt_after)
        with pytest.raises(compress.Stopped) as caught:
            train()
    assert str(caught.value) == (
        "stopped by SIGINT after step 1 of 3; the state is saved; continue with the same call and output='tuned', "
        "resume=True"
    )
    assert {Path(str(entry.path)).parent.name for entry in caught.traceback[1:]} == {"api"}
    assert train(resume=True).model.path.is_dir()
