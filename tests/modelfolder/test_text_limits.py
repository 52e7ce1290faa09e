"""The files of a folder never let another program give the model a longer text than it has positions for."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import foreign_tokenizers
import pytest
from family_cases import CASES
from long_text import check_in_transformers, check_limits, limits, usable_positions

from compress.commands.export import export_stock
from compress.commands.extend import extend_folder
from compress.contracts import RunOptions
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.relative import Disentangled, RelativeBias
from compress.encoder.modules.model import Model
from compress.modelfolder.family import choose
from compress.modelfolder.folder import FolderMeta, inspect, load_model, save_model

POSITIONS = 24
TEXTS = ["the film was good", "a bad film", "she said the plot was not very good", "he liked the actor"]
SPECIFIC: dict[str, dict[str, Any]] = {
    "albert": {"embedding": 12, "layer_groups": (0, 0)},
    "bert": {},
    "camembert": {"segments": 1, "position_offset": 2, "pad_id": 1},
    "deberta-v2": {"segments": 0, "pooler": False, "positions": "none", "disentangled": Disentangled(4, 20, norm=True)},
    "distilbert": {"segments": 0, "pooler": False},
    "electra": {"embedding": 12, "pooler": False},
    "ernie": {},
    "gte": {
        "gated": True, "gate_bias": False, "positions": "rotary", "rotary_bases": (160_000.0, 160_000.0), "pad_id": 1,
        "segments": 1, "pooler": False,
    },
    "longformer": {
        "segments": 1, "position_offset": 2, "pad_id": 1, "windows": (4, 4), "global_projections": True,
    },
    "modernbert": {
        "norm": "pre", "first_norm": False, "bias": False, "gated": True, "positions": "rotary", "segments": 0,
        "rotary_bases": (160.0, 10.0), "windows": (None, 4), "pooler": False,
    },
    "mpnet": {"segments": 0, "position_offset": 2, "pad_id": 1, "relative_bias": RelativeBias()},
    "nomic_bert": {
        "linear_bias": False, "gated": True, "positions": "rotary", "rotary_bases": (1000.0, 1000.0),
        "activation": "silu",
    },
    "roberta": {"segments": 1, "position_offset": 2, "pad_id": 1},
    "xlm-roberta": {"segments": 1, "position_offset": 2, "pad_id": 1},
}  # fmt: skip
"""What the config of each family's models says, sizes apart."""
SAID = {"nothing": None, "the rows of the position table": POSITIONS + 2, "no limit": 10**30, "less": 9}
"""What `model_max_length` of a source may be."""


def tokenizer_files(family: str, said: int | None) -> dict[str, bytes]:
    files = foreign_tokenizers.of_family(family, TEXTS)
    config = json.loads(files["tokenizer_config.json"])
    return files | {
        "tokenizer_config.json": json.dumps(config | ({} if said is None else {"model_max_length": said})).encode()
    }


def model_of(family: str, files: dict[str, bytes]) -> Model:
    config = EncoderConfig.uniform(
        vocabulary=Tokenizer(dict(files)).vocabulary_size, hidden=16, layers=2, heads=2, feed_forward=24,
        max_positions=POSITIONS, **SPECIFIC[family],
    )  # fmt: skip
    found, objection = choose(config, {}, family)
    assert (found.model_type, objection) == (family, None)
    return Model(config, {}).initialize(0).eval()


def saved(folder: Path, family: str, said: int | None = None, reads: int | None = None) -> Path:
    files = tokenizer_files(family, said)
    meta = FolderMeta(family=family)
    return save_model(folder, model_of(family, files), tokenizer_files=files, meta=meta, reads=reads)


def test_every_family_is_here() -> None:
    assert SPECIFIC.keys() == CASES.keys()


@pytest.mark.thorough
@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
@pytest.mark.parametrize("family", SPECIFIC)
def test_the_files_give_no_more_than_the_positions(family: str, said: int | None, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", family, said)
    assert usable_positions(folder) == POSITIONS
    check_limits(folder)
    assert limits(folder)["tokenizer_config.json"] == min(POSITIONS, said or POSITIONS)
    long = saved(tmp_path / "long", family, said, reads=1000)
    check_limits(long)


@pytest.mark.parametrize("family", SPECIFIC)
def test_transformers_reads_a_long_text(family: str, hf: ModuleType, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", family, 10**30)
    assert check_in_transformers(hf, folder) == POSITIONS
    again = load_model(folder)
    copy = save_model(tmp_path / "copy", again.model, tokenizer_files=again.tokenizer_files, meta=again.meta)
    assert check_in_transformers(hf, copy) == POSITIONS


@pytest.mark.parametrize("family", [f for f, values in SPECIFIC.items() if "positions" not in values])
def test_an_extended_folder_reads_its_new_positions(family: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", family, POSITIONS + 2)
    options = RunOptions(output=tmp_path / "longer", quiet=True)
    extend_folder(str(folder), 40, None, None, options)
    check_limits(tmp_path / "longer")
    assert limits(tmp_path / "longer") == {"tokenizer_config.json": 40}
    if inspect(tmp_path / "longer").stock_class is not None:
        hf = pytest.importorskip("transformers")
        assert check_in_transformers(hf, tmp_path / "longer") == 40


@pytest.mark.thorough
@pytest.mark.parametrize("family", SPECIFIC)
def test_an_exported_folder_is_checked_and_reads_a_long_text(family: str, hf: ModuleType, tmp_path: Path) -> None:
    """Also where the random tokens of the check could hold the padding id, which RoBERTa gives no position."""
    folder = saved(tmp_path / "model", family, POSITIONS + 2)
    export_stock(str(folder), "test", RunOptions(output=tmp_path / "hf", quiet=True))
    assert check_in_transformers(hf, tmp_path / "hf") == POSITIONS


def test_a_sentencepiece_model_alone_has_a_limit_too(tmp_path: Path) -> None:
    """Its vocabulary is not read here, and other programs take the limit from the same file."""
    model = model_of("xlm-roberta", tokenizer_files("xlm-roberta", None))
    for name, config in (("said", {"model_max_length": 26, "bos_token": "<s>"}), ("silent", None)):
        files = {"sentencepiece.bpe.model": b"not read here"}
        if config is not None:
            files["tokenizer_config.json"] = json.dumps(config).encode()
        folder = save_model(tmp_path / name, model, tokenizer_files=files, meta=FolderMeta(family="xlm-roberta"))
        check_limits(folder)
        written = json.loads((folder / "tokenizer_config.json").read_text())
        assert written == {**(config or {}), "model_max_length": POSITIONS}


def test_a_folder_without_a_tokenizer_gets_no_settings_of_one(tmp_path: Path) -> None:
    model = model_of("bert", tokenizer_files("bert", None))
    folder = save_model(tmp_path / "bare", model, tokenizer_files={}, meta=FolderMeta(family="bert"))
    assert limits(folder) == {}
