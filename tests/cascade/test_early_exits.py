"""Early exits of one model: how they are trained, chosen, written and certified, and what has none."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cascade.conftest import LABELS, Maker, predict_logits
from early_models import make_early_model, make_plain_model
from torch import nn

import compress
from compress.cascade.exits import add, costs
from compress.cascade.exits.costs import ExitCosts
from compress.cascade.exits.options import MOST, ROWS, ExitOptions, read_layers
from compress.cascade.exits.train import answer, scale_logits, train_exit
from compress.cascade.request import CascadeRequest
from compress.cli.cascade import command
from compress.console import Console
from compress.contracts import Needs, Override, RunOptions, Teacher
from compress.errors import Stopped, UserError
from compress.measure.labelled import open_labelled
from compress.modelfolder.folder import FolderMeta, RecipeNote, annotate, inspect, load_model, save_model
from compress.onnx.runtimes import Runtime
from compress.predict import real_texts
from compress.predict.predictor import Predictor
from compress.predict.real_texts import TextCalls, TextLatency
from compress.storage.signals import StopFlag
from compress.tracking.records import read


def test_an_exit_learns_the_models_answers() -> None:
    generator = np.random.default_rng(0)
    states = generator.normal(3, [0.5, 1, 10, 1], (600, 4)).astype(np.float32)  # the first tells the classes apart
    logits = np.stack([(states[:, 0] - 3) * 6, np.zeros(600)], 1).astype(np.float32)
    head = train_exit(states[:400], logits[:400], seed=0)
    found = answer(head, states[400:])
    assert (found.argmax(1) == logits[400:].argmax(1)).mean() > 0.9
    margins = np.diff(np.stack([found, logits[400:]]), axis=2)[..., 0]
    assert np.asarray(np.corrcoef(margins))[0, 1] > 0.95, "how sure the model is, not its labels alone"
    scale_logits(head, 0.5)
    np.testing.assert_allclose(answer(head, states[400:]), 0.5 * found, rtol=1e-5)


def test_a_state_that_is_almost_constant_gets_no_large_weight() -> None:
    generator = np.random.default_rng(0)
    states = generator.normal([8, 0, 0, 0], [1e-5, 1, 1, 1], (300, 4)).astype(np.float32)
    logits = np.stack([(states[:, 0] - 8) * 1e6, np.zeros(300)], 1).astype(np.float32)
    assert float(train_exit(states, logits, seed=0).weight.abs().max()) < 5


def test_layers_that_are_tried() -> None:
    assert read_layers(" 4, 2") == (2, 4)
    assert read_layers("auto") is None
    assert any(f"default: {ROWS:,}" in (getattr(option, "help", None) or "") for option in command.params)
    assert ExitOptions().choose_layers(2) == [1]
    assert ExitOptions().choose_layers(6) == [1, 2, 3, 4, 5]
    assert ExitOptions().choose_layers(12) == [2, 4, 6, 8, 10]
    assert all(len(set(ExitOptions().choose_layers(n))) == min(MOST, n - 1) for n in range(2, 40))
    assert ExitOptions((1, 3)).choose_layers(4) == [1, 3]
    for text, message in (("2,x", "is no list of layers"), ("0", "is no list"), ("", "is no list"), ("2,2", "twice")):
        with pytest.raises(UserError, match=message):
            read_layers(text)
    with pytest.raises(
        UserError, match=r"--exit-layers: an exit after layer 4 .*has 4 layers; give layers from 1 to 3"
    ):
        ExitOptions((2, 4)).choose_layers(4)
    with pytest.raises(UserError, match="no layer to exit after"):
        ExitOptions().choose_layers(1)


@pytest.fixture(autouse=True)
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks how long texts take."""
    monkeypatch.setattr(real_texts, "ROUTED", 4)


@pytest.fixture
def rows(tmp_path: Path, texts: list[str], parent: Path) -> Path:
    """Labelled as the parent answers; of training rows more than elsewhere, for exits to learn from."""
    gold, folder, start = predict_logits(parent, texts).argmax(1), tmp_path / "rows", 0
    folder.mkdir()
    for split, count in (("validation", 60), ("test", 60), ("train", 400)):
        part = range(start, start := start + count)
        lines = [json.dumps({"text": texts[i], "label": LABELS[gold[i]]}) for i in part]
        (folder / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_a_layer_costs_what_texts_cost_that_leave_behind_it(
    parent: Path, rows: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[Any] = []

    def look_up(calls: TextCalls, models: list[Teacher], device: str) -> list[TextLatency]:
        batch = calls.batches[0][0]
        whole, early = (model(batch, Needs(logits=True)).logits for model in models)
        answered.append(whole is not None and early is not None and bool(torch.allclose(whole, early, atol=1e-4)))
        return [TextLatency(10.5, 0, 0, 0.5), TextLatency(10.5 + (len(answered) - 2), 0, 0, 0.5)]

    monkeypatch.setattr(costs, "_time", look_up)
    predictor = Predictor(parent, task="classification").with_runtime(runtime)
    heads = {layer: nn.Linear(64, 3) for layer in (1, 2)}
    table = open_labelled(
        inspect(parent), RunOptions(overrides=(Override("data.source", str(rows), "--data"),)), Console(quiet=True)
    )[1]
    request = CascadeRequest({"parent": parent}, table, 16, {}, 1.0, Console(quiet=True))
    found = costs.measure_costs(request, predictor, heads)
    assert answered == [False, False, True], "each exit alone answers all; both together answer none"
    assert (found.whole.mean, found.whole.tokenization) == (10.5, 0.5)
    assert found.overhead == pytest.approx(0.5)
    assert found.exits == pytest.approx({1: 9.0, 2: 10.0})


@pytest.fixture
def known_costs(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Milliseconds, instead of those of a clock: each layer takes one, and asking an exit `overhead`."""
    known = {"overhead": 0.0}

    def look_up(request: Any, predictor: Predictor, heads: dict[int, Any]) -> ExitCosts:
        whole = TextLatency(predictor.config.depth + 0.1, 0, 0, 0.1)
        return ExitCosts(whole, {layer: float(layer) for layer in heads}, **known)

    monkeypatch.setattr(add, "measure_costs", look_up)
    return known


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_signal_stops_it_and_nothing_is_left(
    tmp_path: Path, parent: Path, rows: Path, known_costs: object, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    calls = iter([*[None] * place, "SIGTERM"])
    monkeypatch.setattr(StopFlag, "requested", property(lambda flag: next(calls, None)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with pytest.raises(Stopped, match="stopped by SIGTERM"):
        compress.cascade(
            parent, str(rows), output=tmp_path / "new", max_drop=40, exit_layers="auto", runtime="torch",
            device="cpu", quiet=True,
        )  # fmt: skip
    assert not list(tmp_path.glob("*new*"))
    assert not list((tmp_path / "temporary").glob("compress-exits*"))


def test_a_model_answers_early(tmp_path: Path, parent: Path, rows: Path, texts: list[str], known_costs: object) -> None:
    output = tmp_path / "early"
    how: dict[str, Any] = {"device": "cpu", "quiet": True}
    annotate(parent, inspect(parent).meta.model_copy(update={"recipe": RecipeNote(name="finetune")}))
    made = compress.cascade(
        parent, str(rows), output=output, max_drop=40, exit_layers="auto", runtime="torch", max_length=12, **how
    )
    found = made["certificate"]
    assert found == json.loads((output / "certificate.json").read_text())
    assert (found["format"], found["status"], found["rows"]) == ("exits-1", "certified", 60)
    *exits, last = found["stages"]
    assert exits
    assert (last["layer"], last["threshold"]) == (3, None)
    assert sum(stage["rows"] for stage in found["stages"]) == 60
    assert exits[0]["rows"] > 0
    assert found["chosen_on"]["p_value"] <= 0.1
    head = inspect(output).heads["task"]
    assert [(e.layer, e.threshold) for e in head.exits] == [(s["layer"], s["threshold"]) for s in exits]
    assert inspect(output).meta.method == "early_exit"
    assert inspect(output).meta.max_length == 12, "it reads texts as it was certified"
    assert [p.name for p in inspect(output).meta.lineage] == ["parent"]
    said = [record for record in read(tmp_path / "early-run").records if record["op"] == "params"]
    params = {key: value for record in said for key, value in record["values"].items()}
    assert (params["method"], params["models"]) == ("early_exit", "parent")
    assert params["exit_layers"] == ", ".join(str(stage["layer"]) for stage in exits)
    card = (output / "README.md").read_text()
    assert "certificate: certified" in card
    assert inspect(output).meta.recipe is None, "it made the parent"
    assert "all models together" not in card
    told = [a.as_json() for a in made.model.predict(texts[:40])]
    one_by_one = [made.model.predict(text)[0].as_json()["label"] for text in texts[:10]]
    assert [a["label"] for a in told[:10]] == one_by_one
    in_file = compress.load(output, device="cpu", runtime="onnxruntime").predict(texts[:40])
    for ours, theirs in zip(told, (a.as_json() for a in in_file), strict=True):
        assert ours["label"] == theirs["label"]
        np.testing.assert_allclose([*ours["probabilities"].values()], [*theirs["probabilities"].values()], atol=1e-4)
    measured = made.model.evaluate(str(rows), bootstrap=100, **how)
    assert measured.metrics["early"]["quality/accuracy"] == found["quality"]["value"]
    made.model.export("onnx", tmp_path / "again", quiet=True)
    exported = load_model(tmp_path / "again", exits=True)
    assert exported.heads["task"].exits == head.exits
    card = (tmp_path / "again" / "README.md").read_text()
    assert "uncertified: the folder contains no certificate" in card
    assert "certificate: " not in card


def test_the_model_itself_where_exits_do_not_pay(
    tmp_path: Path, parent: Path, rows: Path, known_costs: dict[str, float]
) -> None:
    known_costs["overhead"] = 50.0
    made = compress.cascade(
        [parent], str(rows), output=tmp_path / "same", exit_layers=[1], max_drop=10, device="cpu", quiet=True
    )
    assert (made["is_cascade"], made["chosen"], made["certificate"]) == (False, ["parent"], None)
    assert not load_model(tmp_path / "same").heads["task"].exits


def test_what_has_no_early_exits(tmp_path: Path, small: Path, parent: Path, rows: Path, make_folder: Maker) -> None:
    flat = make_folder("flat", layers=1)
    cases: list[tuple[list[Path], dict[str, Any], str]] = [
        ([small, parent], {"exit_layers": "auto"}, "early exits are those of one model"),
        ([parent], {"exit_layers": "3"}, "an exit after layer 3 is not possible"),
        ([parent], {"exit_layers": "a"}, "is no list of layers"),
        ([flat], {"exit_layers": "auto"}, "no layer to exit after"),
        ([small, parent], {"exit_rows": 10}, "exit_rows: only applies to early exits"),
        ([small, parent], {"seed": 1}, "seed: only applies to early exits"),
        ([parent], {}, "or exit_layers='auto' for early exits of this one"),
    ]
    for models, how, message in cases:
        with pytest.raises(UserError, match=message):
            compress.cascade(models, str(rows), output=tmp_path / "new", device="cpu", quiet=True, **how)
    assert not (tmp_path / "new").exists()


def test_commands_that_change_a_model_reject_early_exits(
    tmp_path: Path, data: Path, toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    early = make_early_model(make_plain_model(vocabulary=len(toy_vocabulary)))
    meta = FolderMeta(label_names=LABELS, max_length=16, task="classification")
    folder = save_model(tmp_path / "early", early, tokenizer_files=toy_tokenizer_files, meta=meta)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    how: dict[str, Any] = {"quiet": True, "device": "cpu"}
    rows, model = str(data), compress.load(folder, device="cpu")
    calls: list[Callable[[], object]] = [
        lambda: compress.prune_layers(folder, rows, keep=1, **how),
        lambda: compress.quantize(folder, rows, **how),
        lambda: compress.distill(folder, rows, student=1, **how),
        lambda: compress.calibrate(folder, rows, output="new", **how),
        lambda: compress.calibrate(folder, rows, output="new", limit=5, **how),  # before rows are read
        lambda: compress.cascade(folder, rows, output="new", exit_layers="auto", **how),
        lambda: compress.fit(folder, rows, max_drop=1, **how),
        lambda: model.export("hf", "new", quiet=True),
    ]
    for call in calls:
        with pytest.raises(UserError, match=r"this model has early exits.*use its parent"):
            call()
    with pytest.raises(UserError, match="the certificate of a cascade or of early exits cannot"):
        compress.verify(folder, **how)
    with pytest.raises(UserError, match=r"a model with early exits is timed on texts.*give data=, without length="):
        model.benchmark(length=8, quiet=True)
    assert not list(Path().iterdir())
