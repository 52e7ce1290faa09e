"""Text without labels through the real command line: pools, filters, agreement as the end of training, time."""

from __future__ import annotations

import json
from pathlib import Path

from e2e_toy import DISTILL, Cli

POOL = ("--pool", "pool.txt", "--pool-rows", "10")
LINES = [f"{who} told me the {thing} was {how} today" for who in ("she", "he") for thing in ("film", "meal", "song")
         for how in ("good", "awful", "great")]  # fmt: skip


def test_a_pool_by_vectors_of_the_teacher(taught: Path, compress: Cli) -> None:
    (taught / "pool.txt").write_text("\n".join(LINES) + "\n")
    done = compress(*DISTILL, *POOL, "--pool-by", "vectors", "--output", "runs/s", "--json")
    assert done.code == 0, done.err
    assert "pool: 10 of 18 passages of pool.txt are taken, the nearest to the training rows by vectors" in done.err
    student = next(m for m in json.loads(done.out)["models"] if m["role"] == "student")
    assert student["values"]["rows/teacher_labelled"] >= 10
    done = compress(*DISTILL, "--pool-by", "vectors", "--output", "runs/t")
    assert (done.code, done.out) == (2, "")
    assert "pool_by has no effect without pool" in done.err, done.err
