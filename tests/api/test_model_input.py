"""Models in memory as folders of the cache, and several of them as a list or a tuple."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

import compress
from compress.api import command, model_commands
from compress.api.model_input import is_pair, model_name


class Written:
    """Stands for what transformers can write: files by path."""

    def __init__(self, **files: str) -> None:
        self.files = {path.replace("__", "/"): text for path, text in files.items()}

    def save_pretrained(self, folder: Any, **_: Any) -> None:
        for path, text in self.files.items():
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(text)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))


def test_names_and_folders_are_themselves() -> None:
    assert model_name("hf:org/name") == "hf:org/name"
    assert model_name(PurePosixPath("a/b")) == "a/b"
    assert model_name(SimpleNamespace(path=Path("a/b"))) == "a/b"  # type: ignore[arg-type]


def test_a_pair_is_found_again_by_its_content() -> None:
    words = Written(vocab="a b")
    first = model_name((Written(weights="1"), words))  # type: ignore[arg-type]
    assert model_name((Written(weights="1"), Written(vocab="a b"))) == first  # type: ignore[arg-type]
    assert model_name((Written(weights="2"), words)) != first  # type: ignore[arg-type]
    assert sorted(p.name for p in Path(first).iterdir() if p.suffix != ".json") == ["vocab", "weights"]


def test_files_of_one_name_in_several_folders_count_by_their_place() -> None:
    one: Any = (Written(a__x="1", b__x="2"), Written())
    other: Any = (Written(a__x="1", c__x="2"), Written())
    assert model_name(one) != model_name(other)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "a value of type NoneType is not a model"),
        (("a", "b"), "a value of type tuple is not a model"),
        ((Written(), Written(), Written()), "a value of type tuple is not a model"),
        (SimpleNamespace(path="a"), "a value of type SimpleNamespace is not a model"),
        (Written(), "a model needs its tokenizer"),
    ],
)
def test_what_is_no_model(model: Any, message: str) -> None:
    with pytest.raises(compress.UserError, match=message):
        model_name(model)


def test_several_models_are_a_list_or_a_tuple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_commands, "call_for", lambda kind, name, values, *models, **_: models)
    pair: Any = (Written(), Written())
    assert is_pair(pair)
    one: Any = compress.promote
    assert one("a", "best") == ("a",)
    assert one(["a", Path("b")], "best") == one(("a", Path("b")), "best") == ("a", "b")
    assert len(one(pair, "best")) == 1
    for none in ([], ()):
        with pytest.raises(compress.UserError, match=r"compress\.promote: models: no model is given"):
            one(none, "best")


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(compress.UserError, match=r"compress\.benchmark: missing argument 'MODELS\.\.\.'"):
        command.call("benchmark", {})
