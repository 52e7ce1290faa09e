"""The parts of writing a model folder: label names, files of one content, and what no file can describe."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from compress.encoder.config.encoder import HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.meta import FolderMeta
from compress.modelfolder.save import _label_names, _must, _state, _wired, _write_files, duplicate, save_model

CLASSES = HeadConfig("classification", labels=2)


def test_label_names() -> None:
    given = FolderMeta(label_names=("no", "yes"))
    assert _label_names(given, CLASSES, "m") == ("no", "yes")
    assert len(set(_label_names(FolderMeta(), CLASSES, "m"))) == 2
    assert _label_names(given, None, "m") == ()
    with pytest.raises(UserError, match=r"^m: 2 label names for a head with 3 labels$"):
        _label_names(given, HeadConfig("classification", labels=3), "m")
    with pytest.raises(UserError, match=r"^m: two labels have the same name: no, no$"):
        _label_names(FolderMeta(label_names=("no", "no")), CLASSES, "m")


def test_one_content_is_one_file(tmp_path: Path) -> None:
    shared = b"the same object"
    _write_files(tmp_path, {"b.txt": shared, "a/b.txt": shared, "c.txt": b"other"})
    assert (tmp_path / "a/b.txt").read_bytes() == (tmp_path / "b.txt").read_bytes() == shared
    assert (tmp_path / "a/b.txt").samefile(tmp_path / "b.txt")
    assert (tmp_path / "c.txt").read_bytes() == b"other"


def test_a_state_is_finite_and_of_one_float_type(tiny_model: Model) -> None:
    assert _state(tiny_model, "m").keys() == tiny_model.state_dict().keys()
    first = next(tiny_model.parameters())
    with torch.no_grad():
        first.view(-1)[0] = float("nan")
    with pytest.raises(UserError, match=r"^m: .*(NaN|not finite|infinit)"):
        _state(tiny_model, "m")
    with torch.no_grad():
        first.view(-1)[0] = 0
    tiny_model.encoder.half()
    with pytest.raises(
        UserError, match=r"the weights are torch\.float16, torch\.float32: all weights must have the same"
    ):
        _state(tiny_model, "m")


def test_a_file_that_is_no_tokenizer_file(tiny_model: Model, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'notes\.txt' is not a tokenizer file: known: "):
        save_model(tmp_path / "m", tiny_model, tokenizer_files={"notes.txt": b""})
    assert list(tmp_path.iterdir()) == [], "nothing is left half-written"


def test_a_duplicate_takes_no_room(tiny_model: Model, toy_tokenizer_files: dict[str, bytes], tmp_path: Path) -> None:
    source = save_model(tmp_path / "m", tiny_model, tokenizer_files=toy_tokenizer_files)
    duplicate(source, tmp_path / "n")
    names = sorted(path.name for path in source.iterdir())
    assert sorted(path.name for path in (tmp_path / "n").iterdir()) == names
    assert (source / "model.safetensors").samefile(tmp_path / "n" / "model.safetensors")


def test_positions_that_started_as_sinusoids_are_learned() -> None:
    assert _wired(SimpleNamespace(positions="sinusoidal_start"), "positions") == "learned"  # pyright: ignore[reportArgumentType]
    assert _wired(SimpleNamespace(positions="rotary"), "positions") == "rotary"  # pyright: ignore[reportArgumentType]


def test_a_folder_that_differs_from_its_model_is_a_bug() -> None:
    _must(True, "nothing")
    with pytest.raises(RuntimeError, match="differs from the model: x differs"):
        _must(False, "x differs")
