"""The files of sentence-transformers that are carried over to another model, and those that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from family_cases import CASES
from huggingface_hub.utils import filter_repo_objects
from long_text import check_limits, limits
from test_text_limits import POSITIONS, saved

from compress.encoder.config.encoder import EncoderConfig
from compress.errors import UserError
from compress.modelfolder.folder import fingerprint, inspect, load_model, save_model
from compress.modelfolder.resolve import PATTERNS
from compress.modelfolder.sentence_files import PROMPTS, identity, sentence_files
from compress.modelfolder.sentence_pooling import MODULES, SETTINGS, Dense, SentenceParts, part_files, read_parts

HIDDEN = 6
CONFIG = EncoderConfig.uniform(vocabulary=9, hidden=HIDDEN, layers=1, heads=1, feed_forward=8, max_positions=POSITIONS)


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def listed(*types: str) -> bytes:
    """modules.json of an encoder and these modules after it."""
    kinds = [name.rpartition(".")[2] for name in types]
    paths = [f"{i}_{kind}" if i else "" for i, kind in enumerate(kinds)]
    rows = zip(types, paths, strict=True)
    return json.dumps([{"idx": i, "name": str(i), "path": p, "type": t} for i, (t, p) in enumerate(rows)]).encode()


def test_a_folder_without_modules_has_none(tmp_path: Path) -> None:
    written(tmp_path, {PROMPTS: b"{}", SETTINGS: b'{"max_seq_length": 9}'})
    assert sentence_files(tmp_path, CONFIG) == {}


def test_files_are_carried_byte_by_byte_also_of_modules_that_are_not_computed_here(tmp_path: Path) -> None:
    kinds = ("Transformer", "Pooling", "LayerNorm", "Dropout", "Normalize")
    files = {
        MODULES: listed(*(f"sentence_transformers.models.{kind}" for kind in kinds)),
        "1_Pooling/config.json": b'{"pooling_mode_max_tokens":   true}',
        "2_LayerNorm/config.json": b'{"dimension": 6}',
        "2_LayerNorm/model.safetensors": b"weights",
        "3_Dropout/config.json": b'{"dropout": 0.1}',
        "sentence_roberta_config.json": b'{"max_seq_length": 9,  "do_lower_case": true}',
        PROMPTS: b'{"prompts": {"query": "q: "}}',
    }
    assert sentence_files(written(tmp_path, files), CONFIG) == files


def test_a_class_is_known_in_whichever_package_it_is(tmp_path: Path) -> None:
    files = part_files(SentenceParts("mean", (), normalize=True), HIDDEN)
    text = files[MODULES].decode().replace("sentence_transformers.models.", "sentence_transformers.base.modules.")
    files[MODULES] = text.encode()
    assert read_parts(written(tmp_path, files), HIDDEN).normalize
    assert sentence_files(tmp_path, CONFIG) == files


BAD = [
    ({MODULES: listed("mine.Transformer")}, "module mine.Transformer is code of its own"),
    (
        {MODULES: listed("sentence_transformers.models.Transformer", "custom_pooling.Pool")},
        "custom_pooling.Pool is code",
    ),
    ({"1_Pooling/config.json": None}, "1_Pooling: module Pooling has no files"),
    ({"1_Pooling/model.py": b"print()"}, "1_Pooling: model.py cannot be carried over"),
    ({"1_Pooling/pytorch_model.bin": b"a pickle"}, "1_Pooling: pytorch_model.bin cannot be carried over"),
    ({MODULES: b'[{"type": "sentence_transformers.models.Pooling", "path": "../other"}]'}, "path is '../other'"),
    ({MODULES: b'[{"type": "sentence_transformers.models.Pooling"}]'}, "path is"),
    ({MODULES: b'[{"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}]'}, "an empty path"),
    ({MODULES: b"{}"}, "not a list of modules"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_what_cannot_be_carried_over(change: dict[str, bytes | None], message: str, tmp_path: Path) -> None:
    files = part_files(SentenceParts("mean"), HIDDEN) | change
    written(tmp_path, {name: data for name, data in files.items() if data is not None})
    with pytest.raises(UserError, match=message):
        sentence_files(tmp_path, CONFIG)


def test_a_matrix_that_is_not_there_is_missed(tmp_path: Path) -> None:
    """The hub may hold it as a pickle alone, which is not fetched."""
    files = part_files(SentenceParts("mean", (Dense(torch.eye(HIDDEN)),)), HIDDEN)
    del files["2_Dense/model.safetensors"]
    with pytest.raises(UserError, match=r"2_Dense: model\.safetensors is missing; restore it; to compress the encoder"):
        sentence_files(written(tmp_path, files), CONFIG)


def test_the_hub_is_asked_for_all_of_them() -> None:
    parts = SentenceParts("mean", (Dense(torch.eye(HIDDEN)),), max_length=9)
    names = [*part_files(parts, HIDDEN), PROMPTS, "sentence_xlm-roberta_config.json", "2_LayerNorm/config.json"]
    other = ["2_Dense/pytorch_model.bin", "1_Pooling/code.py", "onnx/config.txt"]
    assert list(filter_repo_objects([*names, *other], allow_patterns=list(PATTERNS))) == names


def test_a_copy_of_a_pickle_is_left_out(tmp_path: Path) -> None:
    files = part_files(SentenceParts("mean"), HIDDEN) | {"1_Pooling/model.safetensors": b"weights"}
    written(tmp_path, files | {"1_Pooling/pytorch_model.bin": b"the same weights"})
    assert sentence_files(tmp_path, CONFIG) == files


@pytest.mark.thorough
@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize("said", [None, 9, POSITIONS + 2, 10_000])
def test_the_longest_text_fits_the_positions_of_every_family(family: str, said: int | None, tmp_path: Path) -> None:
    source = saved(tmp_path / "source", family)
    parts = SentenceParts("mean", max_length=said)
    written(source, part_files(parts, inspect(source).config.hidden))
    loaded = load_model(source)
    beside = sentence_files(source, loaded.config)
    made = save_model(tmp_path / "made", loaded.model, tokenizer_files=loaded.tokenizer_files, beside=beside)
    check_limits(made)
    assert limits(made).get(SETTINGS) == (None if said is None else min(said, POSITIONS))
    assert (made / SETTINGS).is_file() == (said is not None)


def test_an_identity_follows_the_modules(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "bert")
    assert identity(folder) == fingerprint(folder), "a folder without modules"
    seen = {identity(folder)}
    for change in (
        part_files(SentenceParts("mean"), 16),
        part_files(SentenceParts("cls"), 16),
        part_files(SentenceParts("cls", max_length=9), 16),
        {PROMPTS: b'{"prompts": {"query": "q: "}}'},
        {MODULES: b"not even JSON"},
    ):
        seen.add(identity(written(folder, change)))
    assert len(seen) == 6
