"""Which runs of a store a comparison shows: those that are named, those of an experiment, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from compare_rows import row

from compress.compare import gather
from compress.compare.gather import is_model, one_row_each, runs_of
from compress.errors import UserError, format_count
from compress.tracking.reading import ListedRun, StoredRun
from evaluation.quality.draws import of_mean
from evaluation.quality.pairing import resample_metric

PARENT = "mlflow.parentRunId"
MEASURED = {"quality/accuracy": 0.9, "size/disk_mb": 3.0}


def run(run_id: str, *, metrics: Mapping[str, float] | None = None, name: str = "", **tags: str) -> StoredRun:
    found = MEASURED if metrics is None else metrics
    told = {key.replace("__", "."): value for key, value in tags.items()}
    return StoredRun(run_id, name or f"run {run_id}", tags.get("of", "small"), 0, f"/files/{run_id}", found, {}, told)


class Store:
    """The runs of a store, the newest first."""

    def __init__(self, *runs: StoredRun, deleted: Sequence[str] = (), gone: Sequence[str] = ()) -> None:
        self.stored, self.deleted, self.gone = runs, deleted, gone
        self.store = SimpleNamespace(shown="the store")
        self.texts: dict[str, str | None] = {}
        self.folders: dict[str, list[str]] = {}

    def list_runs(self) -> list[ListedRun]:
        return [
            ListedRun(r.run_id, r.name, r.experiment, 0, r.artifacts, r.run_id in self.deleted) for r in self.stored
        ]

    def runs(self, chosen: Sequence[ListedRun]) -> list[StoredRun]:
        by_id = {r.run_id: r for r in self.stored}
        return [by_id[one.run_id] for one in chosen if one.run_id not in self.gone]

    def text(self, one: StoredRun, name: str) -> str | None:
        return self.texts.get(one.run_id)

    def in_folder(self, folder: str) -> list[str]:
        return self.folders.get(folder, [])


def shown(store: Store, *names: str, experiment: str | None = None) -> tuple[list[str], list[str]]:
    rows, notes = runs_of(store, names, experiment)  # type: ignore[arg-type]
    return [one.name for one in rows], notes


def test_the_experiment_of_the_newest_run_where_none_is_named() -> None:
    store = Store(run("a", of="x"), run("b", of="small"), run("c", of="small"), deleted=["a"])
    names, notes = shown(store)
    assert names == ["run b", "run c"]
    assert notes == ["no runs were named: showing experiment small, which has the newest run"]
    with pytest.raises(UserError, match="the store: the store has no runs"):
        shown(Store(run("a"), deleted=["a"]))


def test_runs_that_measured_no_model_are_left_out_unless_they_are_named() -> None:
    store = Store(run("a", metrics={"loss": 1.0}), run("b"), run("c", compress__role="summary"))
    assert shown(store, experiment="small") == (["run b"], ["not shown: 2 runs of small that measured no model"])
    names, _ = shown(store, "run a", experiment="small")
    assert names == ["run a", "run b"], "what is named comes first"
    with pytest.raises(UserError, match="--experiment small: no run of this experiment measured a model"):
        shown(Store(run("a", metrics={})), experiment="small")


def test_a_run_that_is_named_twice_does_not_make_another_one_named() -> None:
    store = Store(run("a"), run("b", compress__role="summary"), run("c"))
    assert shown(store, "run a", "run a", experiment="small")[0] == ["run a", "run c"]


def test_a_run_that_is_deleted_meanwhile_does_not_make_another_one_named() -> None:
    store = Store(run("a"), run("b", metrics={}), run("c"), gone=["a"])
    names, notes = shown(store, "run a", experiment="small")
    assert names == ["run c"]
    assert notes[0] == "1 run deleted while the store was read"


def test_the_last_stage_of_a_chain_is_its_run_over_again() -> None:
    last = {PARENT: "a"}
    chain = (run("a"), StoredRun("b", "last", "small", 0, "", MEASURED, {}, last))
    other = StoredRun("c", "first", "small", 0, "", {**MEASURED, "size/disk_mb": 9.0}, {}, last)
    names, notes = shown(Store(*chain, other), experiment="small")
    assert names == ["run a", "first"]
    assert notes == ["not shown: 1 run of a last stage; the run above has the same figures"]
    assert shown(Store(*chain, other), "last", "run a")[0] == ["last", "run a"], "who names it wants it"


def test_runs_of_one_name_are_told_apart_by_their_id() -> None:
    store = Store(run("0123456789ab", name="x"), run("cafe", name="x"))
    assert shown(store, experiment="small")[0] == ["x (01234567)", "x (cafe)"]


def test_a_folder_means_its_run(tmp_path: Path) -> None:
    store = Store(run("a"), run("b"), deleted=["a"])
    store.folders[str(tmp_path)] = ["a", "b"]
    assert shown(store, str(tmp_path))[0] == ["run b"]
    inner = tmp_path / "runs" / "student"
    inner.mkdir(parents=True)
    (inner / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=f"not the folder of a run in the store or of a model; name the model, {inner}"):
        shown(store, str(tmp_path / "runs"))
    assert is_model(str(inner))
    assert not is_model(str(tmp_path))


def test_resampled_figures_pair_runs_and_lost_ones_are_said() -> None:
    tagged: Any = {"compress__resampled": "resampled.json"}
    store: Any = Store(run("a", **tagged), run("b", **tagged), run("c", **tagged), run("d"))
    kept = resample_metric(20, of_mean([1.0] * 15 + [0.0] * 5), metric="accuracy", data="abc/test", resamples=10)
    store.texts = {"a": kept.text(), "b": "not one"}
    rows, notes = runs_of(store, [], "small")
    assert [one.resampled is not None for one in rows] == [True, False, False, False]
    assert notes == [
        "the artifacts of 2 runs are missing, e.g. of run b: /files/b; if the files were moved, run `compress runs "
        "relocate`"
    ]


def test_many_files_of_a_server_are_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "FROM_SERVER", 1)
    tags = {"compress.resampled": "resampled.json"}
    store: Any = Store(*(StoredRun(i, i, "small", 0, f"https://there/{i}", MEASURED, {}, tags) for i in "ab"))
    monkeypatch.setattr(store, "text", lambda *_: pytest.fail("fetched"))
    assert runs_of(store, [], "small")[1] == ["more than 1 runs on a server: their resampled figures are not fetched"]


# --- one row for each model -----------------------------------------------------------------------------------------


def stored(name: str, **facts: str) -> Any:
    found = row(name, facts=facts)
    return type(found)(found.name, found.values, found.context, found.facts, run(name), found.resampled)


def test_a_model_that_several_runs_measured_has_one_row() -> None:
    rows = [stored("a", fingerprint="f"), stored("b", fingerprint="f"), stored("c", fingerprint="g"), stored("d")]
    kept, notes = one_row_each(rows)
    assert [one.name for one in kept] == ["a", "c", "d"]
    assert notes == ["not shown: 1 more measurement of the same models"]


def test_teachers_of_old_runs_with_the_same_figures_are_one() -> None:
    rows = [
        stored(name, role=role)
        for name, role in (("a", "teacher"), ("b", "teacher"), ("c", "student"), ("d", "student"))
    ]
    assert [one.name for one in one_row_each(rows)[0]] == ["a", "c", "d"], "students are never guessed to be one"


def test_a_model_that_was_measured_now_stays() -> None:
    rows = [stored("a", fingerprint="f"), row("now", facts={"fingerprint": "f"})]
    assert [one.name for one in one_row_each(rows)[0]] == ["a", "now"]
    assert one_row_each(rows)[1] == []


def test_counts() -> None:
    assert [format_count(n, "run") for n in (0, 1, 1234)] == ["0 runs", "1 run", "1,234 runs"]
