"""A model folder is looked at without its tensors: places that are none, labels that disagree, bytes that changed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.families.bert import Family
from compress.modelfolder.fields import Fields
from compress.modelfolder.folder import save_model
from compress.modelfolder.meta import FolderMeta
from compress.modelfolder.open import _said_of, _with_labels, file_digest, open_folder, with_own
from compress.modelfolder.resolve import resolve

CONFIG = EncoderConfig.uniform(vocabulary=9, hidden=8, layers=1, heads=2, feed_forward=8)


def line(act: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        act()
    return error.value.line()


# --- places ---------------------------------------------------------------------------------------------------------


def test_a_place_that_is_no_model_folder(tmp_path: Path) -> None:
    assert "no config.json: not a model folder" in line(lambda: open_folder(tmp_path))
    (tmp_path / "bert_config.json").write_text("{}")
    assert "rename bert_config.json to config.json" in line(lambda: open_folder(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"x")
    assert f"give the folder: {tmp_path}" in line(lambda: open_folder(tmp_path / "model.safetensors"))
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert "give the folder" not in line(lambda: open_folder(tmp_path / "pytorch_model.bin"))


def test_a_folder_around_the_model_names_the_one_inside(tmp_path: Path) -> None:
    for name in ("z", "best"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert line(lambda: open_folder(tmp_path)).endswith(f"did you mean '{tmp_path / 'best'}'?")


def test_the_folder_of_a_run_names_the_model_that_it_made(tmp_path: Path) -> None:
    def make(name: str) -> str:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "cascade.json").write_text("{}")
        return str(tmp_path / name)

    for name in ("joined-run", "joined-run-2", "other-run", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "x" / "stages").mkdir(parents=True)
    lost = make("lost/stage-1").removesuffix("/stage-1")
    joined, student, deep = make("joined"), make("x/student"), make("seeds/seed-1/student")
    for name, end in (
        ("joined-run", f"this is a run folder, not a model folder; use {joined}"),
        ("joined-run-2", f"this is a run folder, not a model folder; use {joined}"),
        ("x", f"this is a run folder, not a model folder; use {student}"),
        ("seeds", f"looked for config.json and *.safetensors; use a model folder in it, such as {deep}"),
        ("x/stage", f"did you mean '{student}'?"),  # although stages is more alike
        ("lost", f"{lost}: cascade.json is missing; restore it, or make the cascade again: compress cascade"),
        ("other-run", "this is not a model folder: looked for config.json and *.safetensors"),
        ("empty", "this is not a model folder: looked for config.json and *.safetensors"),
    ):
        assert line(lambda name=name: resolve(str(tmp_path / name))).endswith(end)


def test_a_missing_folder_names_the_nearest_folder_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "studemt").write_text("")
    assert "did you mean" not in line(lambda: open_folder(tmp_path / "student"))
    (tmp_path / "students").mkdir()
    assert line(lambda: open_folder(tmp_path / "student")).endswith(f"did you mean '{tmp_path / 'students'}'?")
    assert "no such model folder" in line(lambda: open_folder(tmp_path / "no" / "such"))


def test_a_parent_that_may_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert "no such model folder" in line(lambda: open_folder(tmp_path / "student"))


# --- what must agree ------------------------------------------------------------------------------------------------


def labelled(named: tuple[str, ...], **config: Any) -> FolderMeta:
    head = HeadConfig("classification", labels=2)
    found = Family().describe(
        Fields({"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
                "intermediate_size": 8}, "f/config.json"), {},
    )  # fmt: skip
    description = dataclasses.replace(found, heads={"task": head})
    return _with_labels(FolderMeta(label_names=named), Fields(config, "f/config.json"), Family(), description)


def test_labels_of_both_files_must_be_the_same() -> None:
    names = {"id2label": {"0": "no", "1": "yes"}}
    assert labelled((), **names).label_names == ("no", "yes")
    assert labelled(("no", "yes"), **names).label_names == ("no", "yes")
    found = line(lambda: labelled(("yes", "no"), **names))
    assert found == "f: config.json and compress.json have different labels: no, yes and yes, no; correct one of them"
    many = tuple(f"label-{i}" for i in range(500))
    assert len(line(lambda: labelled(many, **names))) < 300


def test_an_error_of_the_encoder_is_told_with_its_file_once() -> None:
    def raising(where: str | None) -> str:
        def act() -> None:
            with _said_of("f/config.json"):
                raise UserError("bad", where=where, why="because", do="mend it")

        return line(act)

    assert raising("encoder.layers") == "f/config.json: encoder.layers: bad: because; mend it"
    assert raising(None) == "f/config.json: bad: because; mend it"
    assert raising("f/config.json: hidden_size") == "f/config.json: hidden_size: bad: because; mend it"


def test_what_our_own_file_adds_to_a_class_keeps_our_names() -> None:
    values = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
              "intermediate_size": 8}  # fmt: skip
    found = Family().describe(Fields(values, "c"), {})
    assert with_own(found, found.encoder) == found
    wider = dataclasses.replace(found.encoder, norm="pre")
    made = with_own(found, wider)
    assert made.encoder == wider
    assert {ours for ours, theirs in made.names.items() if ours == theirs} == set(made.names) - set(found.names)


# --- bytes that changed ---------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path, toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str]) -> Path:
    config = dataclasses.replace(CONFIG, vocabulary=len(toy_vocabulary))
    model = Model(config, {}).initialize(0)
    return save_model(tmp_path / "m", model, tokenizer_files=toy_tokenizer_files)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "tokenizer_config.json"])
def test_a_file_of_the_manifest_is_what_was_written(name: str, saved: Path) -> None:
    open_folder(saved)
    data = saved.joinpath(name).read_bytes()
    at = len(data) - 1 if name == "model.safetensors" else data.rindex(b"\n") if data.endswith(b"\n") else 0
    saved.joinpath(name).write_bytes(data[:at] + b"\x20" + data[at + 1 :] if at else b" " + data)
    assert f"{name} has changed since it was written" in line(lambda: open_folder(saved))
    open_folder(saved, verify=False)
    (saved / "manifest.json").unlink()
    open_folder(saved)


def test_the_notes_of_a_folder(saved: Path) -> None:
    assert open_folder(saved).notes == ()
    config = saved / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"auto_map": {"AutoModel": "evil.Model"}}))
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (saved / name).unlink(missing_ok=True)
    (saved / "manifest.json").unlink()
    found = open_folder(saved)
    assert found.tokenizer_files == {}
    assert found.vocabulary is None
    assert any("auto_map" in note and "was not run" in note for note in found.notes)
    assert "the folder has no tokenizer" in found.notes


def test_the_digest_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert file_digest(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
