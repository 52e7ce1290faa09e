"""GTE folders as their authors publish them: tensors under `new.`, segments or none, plain rotary positions."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import family_cases as cases
import pytest
from family_cases import compare, stock_load
from safetensors.torch import load_file, save_file

from compress.errors import UserError
from compress.modelfolder.folder import load_model, save_model


@pytest.mark.parametrize("name", ["GteModel", "GteForMaskedLM", "GteForSequenceClassification"])
def test_tensors_under_the_name_of_the_authors_code(name: str, hf: ModuleType, tmp_path: Path) -> None:
    heads = cases.CASES["gte"].heads_of(name)
    reference = cases.stock(hf, "gte", name, tmp_path / "stock")
    path = tmp_path / "stock/model.safetensors"
    bare = ("embeddings.", "encoder.", "pooler.")
    renamed = {
        f"new.{key.removeprefix('gte.')}" if key.startswith(("gte.", *bare)) else key: tensor
        for key, tensor in load_file(path).items()
    }
    save_file(renamed, path, {"format": "pt"})
    compare("gte", load_model(tmp_path / "stock").model, reference, heads)


@pytest.mark.parametrize("segments", [0, 1])
def test_folders_with_and_without_segments(segments: int, hf: ModuleType, tmp_path: Path) -> None:
    """gte-base-en-v1.5 has no segment embeddings, the multilingual models have one row."""
    reference = cases.stock(hf, "gte", "GteForMaskedLM", tmp_path / "stock", type_vocab_size=segments)
    loaded = load_model(tmp_path / "stock")
    assert loaded.config.segments == segments
    inputs = cases.padded_inputs(loaded.config.pad_id)
    inputs["token_type_ids"].zero_()
    compare("gte", loaded.model, reference, {"mlm"}, inputs)
    again = save_model(tmp_path / "again", loaded.model, tokenizer_files={}, meta=loaded.meta)
    compare("gte", loaded.model, stock_load(hf, "GteForMaskedLM", again), {"mlm"}, inputs)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rope_parameters": None, "rope_scaling": {"type": "ntk", "factor": 8.0}}, "only default rotary positions"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "only default rotary positions"),
        ({"rope_parameters": 7}, "an object with rope_type and rope_theta"),
        ({"type_vocab_size": -1}, "type_vocab_size"),
    ],
)
def test_what_is_rejected_by_its_key(changes: dict[str, Any], told: str, hf: ModuleType, tmp_path: Path) -> None:
    cases.stock(hf, "gte", "GteModel", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError) as error:
        load_model(tmp_path)
    assert told in error.value.line()


def test_rotary_positions_by_default(hf: ModuleType, tmp_path: Path) -> None:
    cases.stock(hf, "gte", "GteModel", tmp_path, rope_parameters=None)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    base = values.pop("rope_parameters")["rope_theta"]
    path.write_text(json.dumps(values))
    assert load_model(tmp_path).config.rotary_bases == (base,) * 3 == (160_000.0,) * 3
