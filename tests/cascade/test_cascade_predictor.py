"""A cascade's folder answers as one model: who answers which row, in order, with which probabilities."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cascade.conftest import Maker, predict_logits, write_cascade

import compress
import compress.predict.cascade as cascade_module
from compress.encoder.config.schemes import QuantizationSpec
from compress.encoder.integers.convert import plan_quantization, quantize_model
from compress.errors import UserError
from compress.modelfolder import cascade as cascades
from compress.modelfolder import folder as modelfolder
from compress.onnx import model_file
from compress.predict.cascade import CascadePredictor, open_predictor
from compress.predict.predictor import Predictor
from compress.predict.service import Service, columns_of
from evaluation.cascade import compute_confidence
from evaluation.cost.size import weights_bytes
from evaluation.quality.agreement import softmax


def test_every_threshold_of_1_is_the_parent(tmp_path: Path, small: Path, parent: Path, texts: list[str]) -> None:
    folder = write_cascade(tmp_path / "both", [small, parent], [1.0])
    ours = open_predictor(folder).predict(texts)
    assert [a.as_json() for a in ours] == [a.as_json() for a in Predictor(parent, task="classification").predict(texts)]


@pytest.mark.parametrize("own_tokenizer", [False, True])
def test_each_row_is_answered_by_the_first_model_that_is_sure(
    tmp_path: Path, small: Path, make_folder: Maker, parent: Path, texts: list[str], own_tokenizer: bool,
    toy_tokenizer_files: dict[str, bytes],
) -> None:  # fmt: skip
    files = dict(toy_tokenizer_files)
    if own_tokenizer:  # the same words, other bytes: it reads the texts itself
        content = json.loads(files["tokenizer.json"])
        files["tokenizer.json"] = json.dumps({**content, "normalizer": None}).encode()
    middle = make_folder("middle", seed=3, labels=("z", "x", "y"), tokenizer=files)
    folders, temperature = [small, middle, parent], 1.7
    each = [predict_logits(folder, texts) / temperature for folder in folders]
    each[1] = each[1][:, [1, 2, 0]]
    thresholds = [float(np.quantile(compute_confidence(logits), 0.6)) for logits in each[:2]]
    folder = write_cascade(tmp_path / "all", folders, thresholds, temperature)
    places = np.full(len(texts), 2)
    for place in (1, 0):
        places[compute_confidence(each[place]) > thresholds[place]] = place
    assert set(places) == {0, 1, 2}
    want = softmax(np.stack(each)[places, np.arange(len(texts))])
    predictor = open_predictor(folder)
    assert isinstance(predictor, CascadePredictor)
    assert (predictor.route.tokenizers[1] is not None) == own_tokenizer
    got = [list(answer.as_json()["probabilities"].values()) for answer in predictor.predict(texts)]
    np.testing.assert_allclose(got, want, atol=1e-5)
    one = [list(predictor.predict([text])[0].as_json()["probabilities"].values()) for text in texts[:20]]
    np.testing.assert_allclose(one, want[:20], atol=1e-5)
    examples = predictor.encode_texts(predictor.task, texts, None, max_length=16)
    for _ in range(2):
        predictor.logits(examples)
        assert predictor.answered.tolist() == np.bincount(places).tolist()


@pytest.mark.parametrize("place", [1, 2])
def test_a_model_that_pads_is_given_rows_of_one_length(
    tmp_path: Path, small: Path, parent: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """As on its own: in batches of any lengths, the file of a cascade computed twice as many tokens as there were."""
    file = f"stage-{place}"
    monkeypatch.setattr(cascade_module, "choose_stage_runtime", lambda f, *_: "onnxruntime" if f.name == file else None)
    predictor = open_predictor(write_cascade(tmp_path / "both", [small, parent], [0.6]))
    texts = [" ".join(["a"] * words) for words in (1, 12, 3, 12, 1, 3) * 400]
    examples = predictor.encode_texts(predictor.task, texts, None, max_length=16)
    alone = Predictor(tmp_path / "both" / file, runtime="onnxruntime")
    monkeypatch.setattr(Predictor, "max_tokens", 4096)  # in place of a budget that all of these texts fit into
    for one in (predictor, alone):
        found = list(one.batches(examples))
        assert sum(batch.rows * batch.max_length for batch in found) == len(examples.ids)
        assert sorted(np.concatenate([batch.row_ids for batch in found])) == list(range(len(texts)))


def test_torch_computes_the_float_model_where_integers_are_requested(tmp_path: Path, small: Path, parent: Path) -> None:
    loaded = modelfolder.load_model(small)
    plan = plan_quantization(QuantizationSpec(), loaded.model)
    rounded = quantize_model(loaded.model, plan).eval()
    int8 = modelfolder.save_model(
        tmp_path / "int8", rounded, tokenizer_files=loaded.tokenizer_files, meta=loaded.meta
    )  # fmt: skip
    folder = write_cascade(tmp_path / "both", [int8, parent], [0.6])
    both = CascadePredictor(folder, runtime="torch-int8")
    assert [model.runtime for model in both.models] == ["torch-int8", "torch"]
    again = CascadePredictor(folder).with_runtime("torch-int8")
    assert [model.runtime for model in again.models] == ["torch-int8", "torch"]


def test_memory_is_measured_in_sessions_that_took_none_yet(
    tmp_path: Path, small: Path, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_file, "open_session", lambda *_, **__: object())
    model = Predictor(parent, task="classification", runtime="torch")
    assert model.reopen() is model, "torch keeps nothing"
    exported = model.with_runtime("onnxruntime")
    session = exported.run
    assert exported.reopen().run is not session
    assert exported.run is session
    folder = write_cascade(tmp_path / "both", [small, parent], [0.6])
    for stage in ("stage-1", "stage-2"):
        (folder / stage / model_file.RECORD).touch()
    both = CascadePredictor(folder, runtime="onnxruntime")
    assert all(a.run is not b.run for a, b in zip(both.models, both.reopen().models, strict=True))


def test_a_cascade_is_one_model_to_the_api_and_a_service(
    tmp_path: Path, small: Path, parent: Path, texts: list[str]
) -> None:
    folder = write_cascade(tmp_path / "both", [small, parent], [0.6])
    model = compress.load(folder, device="cpu")
    assert model.label_names == ["x", "y", "z"]
    want = [answer.as_json() for answer in model.predict(texts[:5])]
    assert columns_of(folder) == [("text", True)], "no second text, which the model would reject"
    assert Service(folder).answer([{"text": text} for text in texts[:5]]) == want
    again = model.save(tmp_path / "saved")
    assert [answer.as_json() for answer in again.predict(texts[:5])] == want
    assert modelfolder.fingerprint(again.path) == modelfolder.fingerprint(folder)
    assert modelfolder.fingerprint(write_cascade(tmp_path / "other", [small, parent], [0.7])) != (
        modelfolder.fingerprint(folder)
    ), "a threshold decides what is answered"
    info = cascades.inspect(folder)
    assert info.disk_mb * 1e6 == weights_bytes(small) + weights_bytes(parent)
    with pytest.raises(UserError, match="a cascade is several networks"):
        _ = model.torch_module


def test_other_commands_name_what_it_is(tmp_path: Path, small: Path, parent: Path) -> None:
    folder = write_cascade(tmp_path / "both", [small, parent], [0.6])
    for load in (modelfolder.load_model, modelfolder.inspect):
        with pytest.raises(UserError, match=r"this is a cascade of several models.*use one of its models"):
            load(folder)


def test_a_folder_that_lost_files_or_was_changed(tmp_path: Path, small: Path, parent: Path) -> None:
    folder = write_cascade(tmp_path / "both", [small, parent], [0.6])
    file = folder / "cascade.json"
    written = file.read_text()
    whole = json.loads(written)
    for change, message in (
        ({"stages": whole["stages"][1:]}, "at least two models, each in a folder of its own"),
        ({"stages": [{**one, "folder": "stage-1"} for one in whole["stages"]]}, "each in a folder of its own"),
        ({"stages": whole["stages"][::-1]}, "every model but the last needs a threshold"),
        ({"stages": [{**whole["stages"][0], "threshold": 2}, whole["stages"][1]]}, "stages.0.threshold"),
        ({"stages": [{**whole["stages"][0], "folder": "../small"}, whole["stages"][1]]}, "stages.0.folder"),
        ({"format_version": 2}, "format version 2 is newer than this program's 1; upgrade compress"),
        ({"stages": [{**whole["stages"][0], "threshold": 0.61}, whole["stages"][1]]}, "both: cascade.json has changed"),
    ):
        file.write_text(json.dumps({**whole, **change}))
        with pytest.raises(UserError, match=message):
            cascades.read(folder)
    file.write_text(written)
    shutil.move(folder / "stage-1", tmp_path / "first")
    shutil.copytree(parent, folder / "stage-1")
    with pytest.raises(UserError, match=r"both: stage-1/manifest.json has changed since it was written"):
        open_predictor(folder)
    shutil.rmtree(folder / "stage-1")
    shutil.move(tmp_path / "first", folder / "stage-1")
    weights = folder / "stage-2" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(UserError, match=r"model.safetensors has changed since it was written"):
        open_predictor(folder)
    (folder / "stage-2" / "config.json").unlink()
    with pytest.raises(UserError, match=r"stage-2, the model parent, is incomplete: looked for config.json"):
        cascades.read(folder)
    shutil.rmtree(folder / "stage-2")
    for use in (open_predictor, model_file.require_publishable):
        with pytest.raises(UserError, match="stage-2, the model parent, is missing"):
            use(folder)


def test_a_model_with_other_labels(tmp_path: Path, small: Path, make_folder: Maker) -> None:
    folder = write_cascade(tmp_path / "both", [small, make_folder("other", labels=("a", "b", "c"))], [0.6])
    message = "stage-2: the labels of this model are not those of its cascade: a, b, c against x, y, z; restore it"
    for use in (open_predictor, cascades.inspect, model_file.require_publishable):
        with pytest.raises(UserError, match=message):
            use(folder)


def test_labels_of_the_cascade_that_were_edited(tmp_path: Path, small: Path, parent: Path) -> None:
    folder = write_cascade(tmp_path / "both", [small, parent], [0.6])
    file = folder / "compress.json"
    written = json.loads(file.read_text())
    for names, fits in ((["z", "x", "y"], True), (["x", "y", "other"], False), (["x", "y"], False)):
        file.write_text(json.dumps({**written, "label_names": names}))
        for use in (open_predictor, cascades.inspect, model_file.require_publishable):
            if fits:
                use(folder)
                continue
            with pytest.raises(UserError, match="stage-1: the labels of this model are not those of its cascade"):
                use(folder)


def test_a_runtime_that_no_model_is_for(tmp_path: Path, small: Path, parent: Path) -> None:
    folder = write_cascade(tmp_path / "both", [small, parent], [0.6])
    with pytest.raises(UserError, match=r"stage-1: no model\.onnx; export the models first .*, then join them again"):
        open_predictor(folder, runtime="onnxruntime")
    with pytest.raises(UserError, match="--runtime torch-int8: no model of this cascade is quantized"):
        open_predictor(folder, runtime="torch-int8")


def test_random_tokens_are_no_texts(tmp_path: Path, small: Path, parent: Path) -> None:
    folder = write_cascade(tmp_path / "both", [small, parent], [1.0])
    with pytest.raises(UserError, match=r"a cascade is timed on texts.*give data=, without length="):
        compress.load(folder, device="cpu").benchmark(length=8, quiet=True)
    with pytest.raises(UserError, match=r"a cascade is timed on texts.*; remove length=$"):
        compress.load(folder, device="cpu").evaluate("opinions", length=8, quiet=True)


def test_commands_that_change_a_model_reject_a_cascade_before_they_write(
    tmp_path: Path, small: Path, parent: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_cascade(tmp_path / "both", [small, parent], [0.6])
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    how: dict[str, Any] = {"quiet": True, "device": "cpu"}
    rows, model = str(data), compress.load(folder, device="cpu")
    calls: list[Callable[[], object]] = [
        lambda: compress.prune_layers(folder, rows, keep=1, **how),
        lambda: compress.quantize(folder, rows, **how),
        lambda: compress.finetune(folder, rows, **how),
        lambda: compress.distill(folder, rows, student=1, **how),
        lambda: compress.fit(folder, rows, max_drop=1, **how),
        lambda: compress.calibrate(folder, rows, output="new", **how),
        lambda: model.export("onnx", "new", quiet=True),
        lambda: model.export("hf", "new", quiet=True),
        lambda: model.embed("a text"),
    ]
    for call in calls:
        with pytest.raises(UserError, match=r"this is a cascade of several models.*use one of its models"):
            call()
    with pytest.raises(UserError, match=rf"certificate of a cascade.*compress evaluate {folder} --against"):
        compress.verify(folder, **how)
    with pytest.raises(UserError, match=r"nothing to convert: the models of a cascade have no pickled weights"):
        compress.convert(folder, output="new", quiet=True)
    assert not list(Path().iterdir())


@pytest.mark.thorough
def test_a_cascade_as_an_mlflow_model(tmp_path: Path, small: Path, parent: Path, texts: list[str]) -> None:
    folder = write_cascade(tmp_path / "both", [small, parent], [0.6])
    model = compress.load(folder, device="cpu")
    model.export("pyfunc", tmp_path / "served", quiet=True)
    copied = compress.load(tmp_path / "served" / "artifacts" / "both", device="cpu")
    assert [a.as_json() for a in copied.predict(texts[:5])] == [a.as_json() for a in model.predict(texts[:5])]
