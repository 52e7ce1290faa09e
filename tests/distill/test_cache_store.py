"""A teacher cache as a folder: filled once, gone on with, shared, and refused where it is of something else."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from cache_toy import ROWS, Filler, ToyRows, filled, identity, opened, teacher_model

from compress.contracts import Batch, Needs
from compress.data.batches.epoch_order import micro_batches
from compress.errors import ExitCode, Stopped, UserError
from compress.stages.distill.cache import filling, handover, shards, store
from compress.stages.distill.cache.handover import HandOver
from compress.stages.shared.stage import SharedParts
from compress.storage import claims
from compress.storage.lock import file_lock

LOGITS = Needs(logits=True)
STATES = Needs(hidden_states=frozenset({0}))
ALL = LOGITS | STATES | Needs(mlm="masked")


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SHARD_TOKENS", (60, 120))


def folders(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.glob("fields/*/shard-*"))


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


# --- filling ------------------------------------------------------------------------------------------------------


def test_each_row_is_asked_once_and_read_ever_after(tmp_path: Path) -> None:
    rows, model, first, second = ToyRows(), teacher_model(), *(Filler(teacher_model()) for _ in range(2))
    _, _, figures = filled(tmp_path / "c", model, LOGITS, rows, first)
    asked = [row for batch in first.asked for row in batch]
    assert sorted(asked[:ROWS]) == list(range(ROWS))
    assert sorted(asked[ROWS:]) == list(range(ROWS)), "the report asks again"
    assert len(folders(tmp_path / "c")) > 3
    assert figures.keys() == {"cache_mb", "cache_seconds", "cache_max_error", "cache_kl"}
    before = contents(tmp_path / "c")
    _, _, again = filled(tmp_path / "c", model, LOGITS, rows, second)
    assert second.asked == []
    assert contents(tmp_path / "c") == before
    assert second.said == first.said
    assert again["cache_kl"] == figures["cache_kl"]


def test_what_is_told(tmp_path: Path) -> None:
    filler = Filler(teacher_model())
    filled(tmp_path / "c", filler.model, LOGITS, ToyRows(), filler, bits=8)
    assert filler.said[0].startswith(f"teacher cache {tmp_path / 'c'}: 40 rows, ")
    assert "logits, 8 bits, against the live teacher on 40 rows: KL " in filler.said[1]
    report = json.loads((tmp_path / "c/fidelity/logits-8bit.json").read_text())
    assert 0 < report["kl"] < 0.01
    assert 0 < report["mean_error"] < report["max_error"] < report["scale"]


def test_filling_that_is_stopped_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    rows, model = ToyRows(), teacher_model()
    filled(tmp_path / "whole", model, LOGITS, rows)
    for at in (0, 1, 4, 6):
        begun = Filler(model)
        begun.stop = lambda begun=begun, at=at: _stop() if len(begun.asked) >= at else None
        with pytest.raises(Stopped):
            filled(tmp_path / f"{at}", model, LOGITS, rows, begun)
        there = len(folders(tmp_path / f"{at}"))
        assert there < len(folders(tmp_path / "whole"))
        assert list((tmp_path / f"{at}").rglob(".tmp-*")) == []
        rest = Filler(model)
        filled(tmp_path / f"{at}", model, LOGITS, rows, rest)
        assert len({row for batch in rest.asked[: -(ROWS // 7 + 1)] for row in batch}) <= ROWS - there
        ours, whole = contents(tmp_path / f"{at}"), contents(tmp_path / "whole")
        assert {k: v for k, v in ours.items() if "fidelity" not in k} == {
            k: v for k, v in whole.items() if "fidelity" not in k
        }


def _stop() -> None:
    raise Stopped("stopped by SIGINT")


class SplitRows(ToyRows):
    """Batches as those of training rows are divided."""

    def batches(self, rows: np.ndarray, max_tokens: int) -> Sequence[Batch]:
        return [self.batch(part) for part in micro_batches(rows, self.lengths, max_tokens)]


def test_workers_share_the_shards_and_leave_the_bytes_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "FILL_TOKENS", 40)
    rows, model, path = SplitRows(), teacher_model(), tmp_path / "shared"
    filled(tmp_path / "alone", model, ALL, rows)
    workers = [Filler(model, claims=tmp_path) for _ in range(3)]

    def die() -> None:
        if len(workers[0].asked) == 2:
            raise Stopped("stopped by SIGTERM")

    def work(worker: Filler) -> None:
        wanted = HandOver.read(tmp_path / "handed")
        wanted.open(tmp_path / "handed").make(worker.live, "cpu", worker.services)

    def share(parts: SharedParts) -> None:
        parts.hand_over(tmp_path / "handed")
        claims.clear(tmp_path)
        with pytest.raises(Stopped):
            work(workers[0])
        work(workers[1])
        assert not (path / "fidelity").exists(), "whoever started the workers compares"
        assert len(parts.list_missing()) == 1, "the shard of the worker that died"
        claims.clear(tmp_path)
        work(workers[2])

    workers[0].stop = die
    filled(path, model, ALL, rows, Filler(model, share=share))
    asked = [row for worker in workers[1:] for batch in worker.asked for row in batch]
    assert len(asked) == len(set(asked)), "no row is asked twice"
    assert contents(path) == contents(tmp_path / "alone")


def test_only_tokens_of_missing_shards_are_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "AT_ONCE", 2)
    rows, model, path = ToyRows(), teacher_model(), tmp_path / "c"
    cache, _, _ = filled(path, model, LOGITS, rows)
    shutil.rmtree(next(iter(cache.fields.values())).path(2))
    handed = []

    def share(parts: SharedParts) -> None:
        parts.hand_over(tmp_path / "handed")
        handed.extend(sorted(p.name for p in (tmp_path / "handed/tokens").iterdir() if p.is_dir()))
        parts.make()

    filled(path, model, LOGITS, rows, Filler(model, share=share))
    assert handed == ["shard-00001"]


def test_a_shard_that_two_workers_write_is_that_of_the_first(tmp_path: Path) -> None:
    cache, _, _ = filled(tmp_path / "c", teacher_model(), LOGITS, ToyRows())
    before = contents(tmp_path / "c")
    (held,) = cache.fields.values()
    arrays, counts = held.read(held.division.rows_of(0))
    held.write(0, arrays, counts)
    assert contents(tmp_path / "c") == before
    (held.path(0) / "values.bin").write_bytes(b"damaged")
    with pytest.raises(UserError, match="exists"):
        held.write(0, arrays, counts)


def test_the_index_counts_rows_and_names_digests(tmp_path: Path) -> None:
    cache, _, _ = filled(tmp_path / "c", teacher_model(), LOGITS, ToyRows())
    (held,) = cache.fields.values()
    index = json.loads((held.folder / shards.INDEX).read_text())
    assert index["rows"] == ROWS == sum(one["rows"] for one in index["shards"])
    for number, one in enumerate(index["shards"]):
        assert one["first"] == held.division.rows_of(number)[0]
        for name, file in one["files"].items():
            data = (held.path(number) / name).read_bytes()
            assert (file["bytes"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())


def test_a_student_that_asks_for_more_adds_it(tmp_path: Path) -> None:
    rows, model, more = ToyRows(), teacher_model(), Filler(teacher_model())
    filled(tmp_path / "c", model, LOGITS, rows)
    before = contents(tmp_path / "c")
    _, teacher, _ = filled(tmp_path / "c", model, LOGITS | STATES, rows, more)
    assert {p.split("/")[1] for p in folders(tmp_path / "c")} == {"logits-32bit", "hidden-0-32bit"}
    after = contents(tmp_path / "c")
    assert {name: after[name] for name in before} == before
    output = teacher(rows.batch(np.arange(5)), LOGITS | STATES)
    assert output.logits is not None
    assert output.hidden_states is not None
    filled(tmp_path / "c", model, LOGITS, rows, bits=8)  # other bits lie beside
    assert "fields/logits-8bit/shard-00000" in folders(tmp_path / "c")


def test_a_whole_cache_can_be_read_where_nobody_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, model = ToyRows(), teacher_model()
    filled(tmp_path / "c", model, LOGITS, rows)

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be written")

    monkeypatch.setattr(store.atomic, "write_json", refused)
    monkeypatch.setattr(store, "file_lock", refused)
    _, teacher, _ = filled(tmp_path / "c", model, LOGITS, rows)
    assert teacher(rows.batch(np.arange(3)), LOGITS).logits is not None


def test_of_two_processes_one_fills_and_the_other_waits(tmp_path: Path) -> None:
    rows, model, waiting = ToyRows(), teacher_model(), Filler(teacher_model())
    path = tmp_path / "c"
    cache, _ = opened(path, model, LOGITS, rows)
    with file_lock(path / store.LOCK):
        other = threading.Thread(target=filled, args=(path, model, LOGITS, rows, waiting))
        other.start()
        until = time.monotonic() + 300
        while not waiting.said and time.monotonic() < until:
            time.sleep(0.02)
        assert waiting.said == [f"teacher cache {path}: another process is filling it; waiting"]
        filled(tmp_path / "elsewhere", model, LOGITS, rows)
        for name in ("fields", "fidelity", "cache.json"):  # as if this process had filled it
            shutil.move(tmp_path / "elsewhere" / name, path / name)
    other.join(60)
    assert not other.is_alive()
    assert waiting.asked == []
    assert cache.missing == {}


def test_maps_that_are_open_stay_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "OPEN_MAPS", 3)
    rows, model = ToyRows(), teacher_model()
    cache, teacher, _ = filled(tmp_path / "c", model, LOGITS, rows)
    everything = np.random.default_rng(0).permutation(ROWS).astype(np.int64)
    output = teacher(rows.batch(everything), LOGITS)
    assert output.logits is not None
    one = torch.cat([_of(teacher, rows, row) for row in everything.tolist()])
    torch.testing.assert_close(output.logits, one, rtol=0, atol=0)
    (held,) = cache.fields.values()
    assert len(held._maps) <= 3


def _of(teacher, rows: ToyRows, row: int) -> torch.Tensor:
    return teacher(rows.batch(np.array([row])), LOGITS).logits


# --- refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"teacher": "c" * 64},
            "with another teacher: its teacher is aaaaaaaaaaaaaaaa, this run's is cccccccccccccccc",
        ),
        ({"tokenizer": "c" * 64}, "with another tokenizer: its tokenizer is bbbbbbbbbbbbbbbb, this run's is cccccccc"),
        ({"data": "c" * 64}, "for other data: its data is ffffffffffffffff, this run's is cccccccccccccccc"),
        ({"max_length": 64}, "for texts of another maximal length: its max length is 12, this run's is 64"),
    ],
)
def test_a_cache_of_something_else(change: dict[str, object], told: str, tmp_path: Path) -> None:
    rows, model = ToyRows(), teacher_model()
    filled(tmp_path / "c", model, LOGITS, rows)
    before = contents(tmp_path / "c")
    with pytest.raises(UserError) as caught:
        opened(tmp_path / "c", model, LOGITS, rows, **change)
    line = caught.value.line()
    assert line.startswith(f"{tmp_path / 'c'}: the teacher cache was built {told}")
    assert line.endswith("; use another folder, or remove the cache to have it rebuilt")
    assert caught.value.code == ExitCode.INPUT
    assert contents(tmp_path / "c") == before


def test_exact_answers_serve_coarser_arithmetic_and_not_the_other_way_round(tmp_path: Path) -> None:
    rows, model = ToyRows(), teacher_model()
    for precision in ("fp32", "bf16"):
        filled(tmp_path / precision, model, LOGITS, rows, precision=precision, bits=16)
    _, teacher = opened(tmp_path / "fp32", model, LOGITS, rows, precision="bf16", bits=16)
    assert teacher.dtype == torch.float32
    with pytest.raises(UserError, match="in another precision: its precision is bf16, this run's is fp32"):
        opened(tmp_path / "bf16", model, LOGITS, rows, precision="fp32", bits=16)


@pytest.mark.parametrize("name", ["values.bin", "offsets.bin", "manifest.json"])
@pytest.mark.parametrize("how", ["cut", "flipped", "gone"])
def test_a_damaged_shard_is_named_and_made_again_once_it_is_removed(how: str, name: str, tmp_path: Path) -> None:
    rows, model = ToyRows(), teacher_model()
    filled(tmp_path / "c", model, LOGITS, rows)
    whole = contents(tmp_path / "c")
    shard = tmp_path / "c/fields/logits-32bit/shard-00001"
    data = bytearray((shard / name).read_bytes())
    if how == "gone":
        (shard / name).unlink()
    elif how == "cut":
        (shard / name).write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 1
        (shard / name).write_bytes(data)
    with pytest.raises(UserError) as caught:
        opened(tmp_path / "c", model, LOGITS, rows)
    assert caught.value.line().startswith(f"{shard}: a shard of the teacher cache is damaged: ")
    assert caught.value.line().endswith("; remove this folder to have it rebuilt, or restore it from a copy")
    assert caught.value.code == ExitCode.DATA
    shutil.rmtree(shard)
    again = Filler(model)
    filled(tmp_path / "c", model, LOGITS, rows, again)
    assert "1 of " in again.said[0]
    assert {k: v for k, v in contents(tmp_path / "c").items() if "fields" in k} == {
        k: v for k, v in whole.items() if "fields" in k
    }


def test_a_folder_or_file_that_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/diary.txt").write_text("mine")
    model, rows = teacher_model(), ToyRows()
    with pytest.raises(UserError) as caught:
        opened(tmp_path / "notes", model, LOGITS, rows)
    assert caught.value.line() == (
        f"{tmp_path / 'notes'}: this folder is not a teacher cache: it holds diary.txt, but no cache.json; "
        "name a new folder"
    )
    assert caught.value.code == ExitCode.REFUSED
    with pytest.raises(UserError, match="the teacher cache must be a folder, found a file"):
        opened(tmp_path / "notes/diary.txt", model, LOGITS, rows)


def test_a_cache_of_another_version(tmp_path: Path) -> None:
    model, rows = teacher_model(), ToyRows()
    filled(tmp_path / "c", model, LOGITS, rows)
    note = json.loads((tmp_path / "c/cache.json").read_text())
    (tmp_path / "c/cache.json").write_text(json.dumps(note | {"format": "teacher-cache-9"}))
    with pytest.raises(UserError, match='its format is "teacher-cache-9", this program\'s is teacher-cache-1'):
        opened(tmp_path / "c", model, LOGITS, rows)


def test_a_teacher_with_bad_numbers_leaves_no_shard(tmp_path: Path) -> None:
    model, rows = teacher_model(), ToyRows()
    for parameter in model.heads["task"].parameters():
        parameter.data.fill_(float("nan"))
    with pytest.raises(UserError, match="the teacher's logits contain NaN") as caught:
        filled(tmp_path / "c", model, LOGITS, rows)
    assert caught.value.code == ExitCode.DATA
    assert folders(tmp_path / "c") == []


def test_the_fingerprints_are_all_in_the_note(tmp_path: Path) -> None:
    filled(tmp_path / "c", teacher_model(), LOGITS, ToyRows())
    note = json.loads((tmp_path / "c/cache.json").read_text())
    own = identity()
    assert note == {"format": store.FORMAT, "rows": ROWS, **vars(own)}
