"""`compress benchmark --suite gpu` on the simulated device, at toy size: prints its JSON as `report`, and as `launches`
those of steps, counted and predicted. Argument: the file for the JSON.

The times are those of a CPU, and mean nothing.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import device  # first: it loads the shim before torch
import torch

from compress.commands.gpu_suite import (
    LOSSES,
    Sizes,
    benchmark_gpu,
    build_batches,
    build_model,
    build_training,
    count_kernels,
)
from compress.contracts import Needs, RunOptions
from compress.encoder.config.encoder import HeadConfig
from compress.encoder.infer.prepare import prepare
from compress.encoder.kernels import add_norm
from evaluation.cost.roofline import count_forward

TOY = Sizes(
    teacher=4, student=2, hidden=32, heads=4, vocabulary=70, positions=32, lookups=((1, 8), (3, 0)),
    steps=((4, 6),), matrix=16, copied=64, rounds=4, energy_seconds=0.0,
)  # fmt: skip


def count(loss: str, sizes: Sizes, rows: int, fused: bool, record: device.Record) -> dict[str, float]:
    """Launches of a steady step, and how many are predicted."""
    step = build_training(loss, sizes, build_batches(sizes, rows, 6, masked=loss != "task")).launch
    step(0)
    record.clear()
    step(1)
    return {"kernels": record.totals()["kernels"], "predicted": count_kernels(loss, sizes, fused=fused)}


def count_all(record: device.Record, fused: bool) -> dict[str, dict[str, float]]:
    """Of steps and passes of few and of many layers."""
    deep, kernel = replace(TOY, teacher=12, student=6), "fused" if fused else "divided"
    found = {
        f"{loss}, {sizes.teacher} and {sizes.student} layers, {rows} rows, {kernel}": count(
            loss, sizes, rows, fused, record
        )
        for loss in LOSSES
        for sizes, rows in ((TOY, 4), (deep, 4), (deep, 8))
    }
    for sizes in (TOY, deep):
        ready = prepare(build_model(sizes, sizes.teacher, HeadConfig("classification", labels=2)), "bf16")
        batch = build_batches(sizes, 4, 6)[0].to("cuda")
        record.clear()
        ready(batch, Needs(logits=True))
        predicted = count_forward(sizes.shape(sizes.teacher), batch.tokens, 6, fused=fused).kernels
        found[f"inference, {sizes.teacher} layers, {kernel}"] = {
            "kernels": record.totals()["kernels"],
            "predicted": predicted,
        }
    return found


if __name__ == "__main__":
    torch.manual_seed(0)
    with device.simulate() as recorded:
        launches = count_all(recorded, fused=True)
        with mock.patch.object(add_norm, "SMALLEST", 1 << 22):
            launches |= count_all(recorded, fused=False)
        report = benchmark_gpu(RunOptions(device="cuda", quiet=True), Path(sys.argv[1]), TOY).as_json()
    print(json.dumps({"report": report, "launches": launches}))
