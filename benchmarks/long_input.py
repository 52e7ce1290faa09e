"""Time and peak memory against length: attention through a window beside full attention, the same weights, in one run.

    python benchmarks/long_input.py [--lengths 512 1024 2048 4096 8192] [--window 256] [--case inference] [--rounds 3]

One sequence of random tokens through an encoder of 6 layers x 384 (12 heads): inference (prepared, fp32), a training
step without dropout, and one with 0.1. For the last of these full attention keeps every probability; lengths at which
that would take more than MEMORY are left out. Checked before anything is timed: with a window as wide as the sequence
both give the same.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import side_by_side as s
import torch

from compress.contracts import Batch
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.encoder.reshape.extend import extend, extend_config
from evaluation.cost.memory import peak_memory_mb

LAYERS, HIDDEN, HEADS = 6, 384, 12
MEMORY = 6e9  # bytes
CASES = {"inference": None, "training": 0.0, "training-dropout": 0.1}
"""Case → dropout, None without training."""


def main() -> None:
    parser = s.arguments(__doc__ or "", rounds=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--window", type=int, default=256, help="tokens to each side (default 256)")
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    check(args.seed)
    rows = [measured(args, case, length) for case in args.case for length in args.lengths]
    if args.json:
        print(json.dumps({"context": s.context(args), "window": args.window, "results": rows}))
        return
    print(" · ".join(f"{name} {value}" for name, value in s.context(args).items()))
    for case in args.case:
        print(f"\n{case}, 1 x length, {LAYERS}x{HIDDEN}, window {args.window} with 1 global token")
        print("  length     full, ms   window, ms  faster    full, MB  window, MB  smaller")
        for row in (r for r in rows if r["case"] == case):
            full, local = row["full"], row["window"]
            if full is None:
                print(f"  {row['length']:6}            -  {local['ms']:11.1f}       -           -  {local['mb']:10.0f}")
                continue
            faster, smaller = full["ms"] / local["ms"], full["mb"] / local["mb"]
            print(
                f"  {row['length']:6}  {full['ms']:11.1f}  {local['ms']:11.1f}  {faster:5.2f}x"
                f"  {full['mb']:10.0f}  {local['mb']:10.0f}  {smaller:6.2f}x"
            )


def pair(length: int, window: int, dropout: float, seed: int) -> tuple[Model, Model]:
    """An encoder with full attention and its twin with a window; the window is left out where it covers all."""
    config = EncoderConfig.uniform(
        vocabulary=30_522,
        hidden=HIDDEN,
        layers=LAYERS,
        heads=HEADS,
        feed_forward=4 * HIDDEN,
        max_positions=512,
        dropout=dropout,
        attention_dropout=dropout,
    )
    short = Model(config).initialize(seed)
    return extend(short, extend_config(config, length + 1)), extend(short, extend_config(config, length + 1, window))


def check(seed: int) -> None:
    """Both compute the same where the window hides nothing, and not the same where it does."""
    batch = sequence(300, seed)
    full, wide = pair(600, 299, 0.0, seed)
    local = extend(full, dataclasses.replace(full.config, windows=(64,) * LAYERS))
    with torch.inference_mode():
        expected = full.eval()(batch).last_hidden
        torch.testing.assert_close(wide.eval()(batch).last_hidden, expected, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(local.eval()(batch).last_hidden, expected, rtol=1e-2, atol=1e-2)


def sequence(length: int, seed: int) -> Batch:
    return s.make_rows(str(length), 1, seed).packed


def measured(args: Any, case: str, length: int) -> dict[str, Any]:
    """Median milliseconds and peak megabytes above the idle process, of both, in turns."""
    dropout = CASES[case]
    full, local = pair(length, args.window, dropout or 0.0, args.seed)
    kept = 3 * 4 * LAYERS * HEADS * length**2  # softmax, its dropout and what dropout drew, in fp32
    ways: dict[str, Callable[[int], Any]] = {"window": step(local, length, dropout, args.seed)}
    if not dropout or kept < MEMORY:
        ways["full"] = step(full, length, dropout, args.seed)
    figures = {f.way: f for f in s.in_turns(ways, args.rounds, args.clock)}
    told = {
        way: {"ms": figures[way].milliseconds, "mb": peak_memory_mb(lambda call=call: call(0))}
        for way, call in ways.items()
    }
    return {"case": case, "length": length, "full": told.get("full"), "window": told["window"]}


def step(model: Model, length: int, dropout: float | None, seed: int) -> Callable[[int], Any]:
    batch = sequence(length, seed)
    if dropout is None:
        ready = prepare(model.eval())
        return lambda _: ready(batch).last_hidden

    model.train()

    def train(_: int) -> None:
        model.zero_grad()
        model(batch).last_hidden.square().mean().backward()

    return train


if __name__ == "__main__":
    main()
