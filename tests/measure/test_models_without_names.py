"""Models without names for their labels, measured beside one that has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.measure.labelled import measure_models
from compress.measure.measured_model import MeasuredModel
from compress.modelfolder.folder import FolderMeta, save_model
from compress.modelfolder.labels import default_names

NAMES = ("O", "B-aspect", "I-aspect")


class Measure:
    """Measures token classifiers: `named`, `unnamed` (LABEL_0 …) and `others`, which has other names."""

    def __init__(self, folder: Path, config: EncoderConfig, files: dict[str, bytes]) -> None:
        self.folder = folder
        named = {"named": NAMES, "unnamed": tuple(default_names(3)), "others": ("O", "B-person", "I-person")}
        for seed, (name, labels) in enumerate(named.items()):
            model = Model(config, {"task": HeadConfig("token_classification", labels=3)}).initialize(seed)
            save_model(folder / name, model, tokenizer_files=files, meta=FolderMeta(label_names=labels))
        rows = [{"tokens": ["the", "film", "was", "good"], "tags": ["O", "B-aspect", "I-aspect", "O"]}] * 6
        (folder / "data").mkdir()
        for split in ("train", "validation", "test"):
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / "data" / f"{split}.jsonl").write_text(text, encoding="utf-8")

    def __call__(self, model: str, against: str | None) -> list[MeasuredModel]:
        data = Override("data.source", str(self.folder / "data"), "--data")
        options = RunOptions(overrides=(data, Override("data.task", "token-classification", "--task")), quiet=True)
        parent = None if against is None else str(self.folder / against)
        return measure_models([str(self.folder / model)], parent, "test", 20, options, Console(quiet=True), timed=False)


@pytest.fixture
def measure(tmp_path: Path, tiny_config: EncoderConfig, toy_tokenizer_files: dict[str, bytes]) -> Measure:
    return Measure(tmp_path, tiny_config, toy_tokenizer_files)


@pytest.mark.parametrize(
    ("model", "against"), [("unnamed", "named"), ("named", "unnamed"), ("unnamed", "unnamed"), ("unnamed", None)]
)
def test_a_model_without_names_answers_under_those_of_the_others_or_of_the_data(
    model: str, against: str | None, measure: Measure
) -> None:
    found = measure(model, against)
    assert [m.metric for m in found] == ["entity_f1"] * len(found)
    assert all("quality/entity_f1" in m.measurement.values for m in found)
    assert ("vs_teacher/entity_f1_difference" in found[-1].measurement.values) == (against is not None)
    assert any("aspect" in one.name for one in found[-1].slices)


def test_models_with_other_names_are_refused(measure: Measure) -> None:
    with pytest.raises(UserError, match="labels"):
        measure("named", "others")
