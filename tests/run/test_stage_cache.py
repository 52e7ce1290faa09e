"""The stage cache: what is found again, what counts as changed, and what is taken over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compress.errors import UserError
from compress.run import cache
from compress.run.cache import CachedStage, describe_change, find, keep, mark, take
from compress.run.results import STEPS
from compress.storage import atomic

KEY = "a" * 64


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def stage(run: str, content: str = "one") -> tuple[Path, Path]:
    """(what a stage of `run` made, its work folder): of a tokenizer, which is a folder of plain files."""
    work = Path("runs") / run / "stages" / "0-tokenizer"
    with atomic.new_folder(work / "model") as temp:
        atomic.write_text(temp / "vocab.txt", content)
    atomic.write_json(work / STEPS, {"steps": 3, "figures": {}})
    return work / "model", work


def kept(run: str, content: str = "one", key: str = KEY) -> tuple[Path, Path]:
    model, work = stage(run, content)
    keep(key, model, work, pytest.fail)
    return model, work


def found(key: str = KEY) -> tuple[Path | None, list[str]]:
    said: list[str] = []
    hit = find(key, said.append)
    return (None if hit is None else hit.run), said


def test_a_stage_is_found_by_its_key_in_the_first_run_that_still_has_it() -> None:
    assert found() == (None, [])
    first, _ = kept("a")
    kept("b")
    assert found() == (Path("runs/a"), [])
    assert found("b" * 64) == (None, [])
    assert describe_change(first, mark(first)) is None


def test_a_folder_that_was_changed_is_not_used_and_another_one_is() -> None:
    changed, _ = kept("a")
    (changed / "vocab.txt").write_text("two", encoding="utf-8")
    run, said = found()
    assert run is None
    assert "model is not used: it was changed after it was written" in said[0]
    kept("b")
    assert found()[0] == Path("runs/b")


def test_another_model_in_its_place_is_not_it() -> None:
    model, _ = kept("a")
    stood = mark(model)
    atomic.set_aside(model)
    stage("a", "two")
    assert describe_change(model, stood) == "it contains a different model"
    assert found()[0] is None


def test_a_run_that_is_gone_or_was_not_finished_is_passed_over() -> None:
    model, work = kept("a")
    (work / STEPS).unlink()
    assert found() == (None, [])
    atomic.write_json(work / STEPS, {"steps": 3, "figures": {}})
    atomic.set_aside(model)
    assert found() == (None, [])


def test_a_few_places_are_remembered_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PLACES", 2)
    for run in ("a", "b", "b", "c"):
        model, work = Path(f"runs/{run}/stages/0-tokenizer/model"), Path(f"runs/{run}/stages/0-tokenizer")
        if not model.exists():
            stage(run)
        keep(KEY, model, work, pytest.fail)
    (file,) = Path("cache/stages").iterdir()
    rows = json.loads(file.read_text(encoding="utf-8"))["places"]
    assert [Path(row["model"]).parts[-4] for row in rows] == ["b", "c"]


def test_a_cache_that_cannot_be_read_or_written_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    model, work = kept("a")
    (file,) = Path("cache/stages").iterdir()
    for content in ("[]", '{"places": [{"model": 3}]}', "not json", '{"places": 7}'):
        file.write_text(content, encoding="utf-8")
        assert found() == (None, []), content
    said: list[str] = []

    def full(*_: object) -> None:
        raise UserError("the disk is full")

    monkeypatch.setattr(atomic, "write_json", full)
    keep(KEY, model, work, said.append)
    assert said == ["later runs cannot reuse this stage: the disk is full"]


def test_what_is_taken_is_the_runs_own() -> None:
    model, work = stage("a")
    for name in ("cka.svg", ".hidden.json", cache.MADE, "trace.bin"):
        (work / name).write_text("{}", encoding="utf-8")
    target, own = Path("runs/b/student"), Path("runs/b/stages/0-tokenizer")
    own.mkdir(parents=True)
    take(CachedStage(model, work), target, own)
    assert (target / "vocab.txt").read_text(encoding="utf-8") == "one"
    assert sorted(path.name for path in own.iterdir()) == ["cka.svg", STEPS], "its journal and its mark stay there"
