"""Studies are kept: the same in every number, of this model and data alone, and a file that is damaged is as none."""

from __future__ import annotations

import dataclasses
import shutil
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_realise import Case

from compress.fit.cost import block_table as blocktable
from compress.fit.loss import saved_study as kept
from compress.fit.loss import study as loss_study
from compress.fit.loss.study import Student, Study, sizes_between
from compress.fit.plan.plans import Scales
from compress.storage import atomic, safe


@pytest.fixture(scope="module", autouse=True)
def timeless() -> Iterator[None]:
    """Blocks take what their place says: nothing is timed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocktable, "_least", lambda calls, *_: ([1.0 + 0.1 * i for i in range(len(calls))], False))
        yield


@pytest.fixture(scope="module", params=[("bert", "classification"), ("albert", "token-classification")], ids="-".join)
def case(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    toy_tokenizer_files: dict[str, bytes],
    toy_vocabulary: list[str],
) -> Case:
    folder = tmp_path_factory.mktemp("kept")
    return Case(folder, toy_tokenizer_files, len(toy_vocabulary), *request.param)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def studied(case: Case, student: Any = None, *, joins: bool = False) -> tuple[Study, Scales, list[str]]:
    said: list[str] = []
    study, scales = kept.load_or_make_study(
        student or case.student, case.blocks, lambda: None, said.append, joins=joins
    )
    return study, scales, said


@pytest.fixture(scope="module")
def first(case: Case, tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """A study, and the cache that keeps it. Not to be changed."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPRESS_CACHE", str(folder))
        study, _, _ = studied(case)
    return study, folder


class Recorder:
    """The parts that progress names, each once."""

    def __init__(self) -> None:
        self.parts: dict[str, None] = {}

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, done: int, **figures: float | str) -> None:
        self.parts[str(figures["part"])] = None


def test_progress_names_the_part_of_the_study_that_it_is_at(case: Case) -> None:
    seen = Recorder()
    kept.load_or_make_study(case.student, case.blocks, lambda: None, lambda _: None, joins=True, watch=lambda *_: seen)
    parts = list(seen.parts)
    assert (parts[0], parts[-1]) == ("1 of 9 (importance of heads and neurons)", "9 of 9 (cut models)")
    assert [int(part.split()[0]) for part in parts] == sorted(int(part.split()[0]) for part in parts)


def test_passes_with_gradients_hold_few_tokens(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_study, "STUDY_TOKENS", 64)
    made = Student(case.loaded, case.task, case.table, case.serving, 24, 0, lambda: None, lambda _: None)
    assert len(made.batches) > len(case.student.batches)
    assert max(batch.tokens for batch in made.batches) <= 64
    assert sum(batch.tokens for batch in made.batches) == sum(batch.tokens for batch in case.student.batches)
    assert len(made.compared) == len(case.student.compared)  # without gradients: as large as the processor likes


@pytest.fixture
def place(case: Case, first: tuple[Study, Path], cache: Path) -> Path:
    """The folder of the study in this test's cache."""
    shutil.copytree(first[1], cache)
    found = kept.place(case.student, case.blocks)
    assert found.is_dir()
    return found


def same(one: Any, other: Any) -> bool:
    """Equal in type, order and every bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return one == other


@pytest.mark.thorough
def test_what_is_read_is_what_was_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    first, scales, said = studied(case, joins=True)
    assert said[0] == "measuring how much each part of the model matters"
    assert bool(first.joins) == (case.loaded.config.layer_groups is None)
    place = kept.place(case.student, case.blocks)
    assert place != kept.place(case.student, case.blocks, joins=True), "what was studied less is no answer"
    monkeypatch.setattr(Student, "study", None)
    again, their_scales, said = studied(case, joins=True)
    assert len(said) == 1
    assert said[0].startswith("loss measurements: reused from an earlier fit, ")
    assert again is not first
    assert same(first, again)
    assert same(scales, their_scales)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]


HARMS = {
    "half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "no archive": lambda data: b"x" * 900,
    **{
        f"byte {share}": lambda data, share=share: flipped(data, int(share * len(data)))
        for share in (0.0, 0.2, 0.5, 0.99)
    },
}


@pytest.mark.parametrize("name", [kept.ARRAYS, kept.SAID, "manifest.json"])
@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_a_damaged_file_is_no_answer(
    case: Case, place: Path, harm: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place / name
    path.write_bytes(harm(path.read_bytes()))
    studies: list[int] = []

    def study(*args: Any, **values: Any) -> Any:
        studies.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(Student, "study", study)
    with pytest.raises(KeyboardInterrupt):
        studied(case)
    assert studies


def test_a_damaged_study_is_studied_anew_and_kept(case: Case, first: tuple[Study, Path], place: Path) -> None:
    (place / kept.SAID).write_bytes(b"")
    again, _, said = studied(case)
    assert said[:2] == made_again(place)
    assert same(first[0], again)
    assert studied(case)[2][0].startswith("loss measurements: reused")


def test_a_file_of_other_contents_is_studied_anew(case: Case, place: Path) -> None:
    files = {name: (place / name).read_bytes() for name in atomic.read_manifest(place)}
    arrays = safe.load_safetensors(place / kept.ARRAYS)
    del arrays["heads/0"]
    with atomic.new_folder(place, replace=True) as temp:
        for name, data in files.items():
            atomic.write_bytes(temp / name, data)
        atomic.write_safetensors(temp / kept.ARRAYS, arrays)
    assert studied(case)[2][:2] == made_again(place)


def made_again(place: Path) -> list[str]:
    return [
        f"the loss measurements in the cache are damaged and are made again: {place}",
        "measuring how much each part of the model matters",
    ]


@pytest.mark.parametrize("name", ["seed", "max_length"])
def test_other_settings_have_other_names(case: Case, name: str) -> None:
    other = types.SimpleNamespace(**vars(case.student) | {name: getattr(case.student, name) + 1})
    assert kept.place(other, case.blocks) != kept.place(case.student, case.blocks)  # type: ignore[arg-type]


def test_other_data_models_threads_and_times_have_other_names(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = kept.place(case.student, case.blocks)
    table = dataclasses.replace(case.student.table, fingerprint="0" * 64)
    other = types.SimpleNamespace(**vars(case.student) | {"table": table})
    found = {plain, kept.place(other, case.blocks)}  # type: ignore[arg-type]
    found.add(kept.place(case.student, dataclasses.replace(case.blocks, ms=case.blocks.ms + 1)))
    monkeypatch.setattr(kept.modelfolder, "fingerprint", lambda _: "0" * 64)
    found.add(kept.place(case.student, case.blocks))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    found.add(kept.place(case.student, case.blocks))
    assert len(found) == 5


@pytest.mark.parametrize(
    ("fewest", "whole", "sizes"), [(200, 1000, [800, 600, 400, 300]), (999, 1000, [999]), (1000, 1000, [])]
)
def test_a_vocabulary_as_large_as_the_whole_one_is_not_tried(fewest: int, whole: int, sizes: list[int]) -> None:
    assert sizes_between(fewest, whole) == sizes
