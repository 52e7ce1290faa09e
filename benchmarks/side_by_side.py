"""What the comparisons with Hugging Face modules share: the same random models and rows on both sides, turns, medians.

Two ways of doing one thing are timed in turns (A B A B ...) on the same rows, so that a machine that drifts is the same
for both; a figure is the median over the rounds of the ratio within one round. Only ratios are worth keeping: the
milliseconds belong to the machine that is named above them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from compress.contracts import Batch
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.modelfolder import family
from evaluation.cost import device

FIRST_ID, LAST_ID, MASK_ID = 1000, 30_000, 103
MASKED = 0.15
QUIET = 0.85  # of wall time and threads; a busy neighbour also stretches every wait of one thread for the other
Call = Callable[[int], Any]
"""One turn: is given the number of the round, so that every round has other rows."""


@dataclass(frozen=True)
class Rows:
    """The same sequences twice: packed for us, padded to the longest for them. targets: ids before masking."""

    packed: Batch
    ids: Tensor
    mask: Tensor
    labels: Tensor

    @property
    def real(self) -> int:
        return self.packed.tokens

    @property
    def padded(self) -> int:
        return self.ids.numel()


def lengths(kind: str, rows: int, rng: np.random.Generator) -> list[int]:
    """mixed: like SST-2's sentences, 8..128 tokens, 25 on average (a batch of 32 is 2.3 times as
    large when padded); else the number of tokens of every row."""
    if kind != "mixed":
        return [int(kind)] * rows
    drawn = np.exp(rng.normal(3.12, 0.44, rows)).round()
    return sorted(int(n) for n in np.clip(drawn, 8, 128))


def make_rows(kind: str, rows: int, seed: int, masked: bool = False) -> Rows:
    """Random rows in both layouts, 15 % of the tokens masked if asked for."""
    rng = np.random.default_rng(seed)
    sizes = lengths(kind, rows, rng)
    ends = np.cumsum([0, *sizes])
    original = torch.from_numpy(rng.integers(FIRST_ID, LAST_ID, ends[-1]))
    ids, at, wanted = original.clone(), None, None
    if masked:
        at = torch.from_numpy(np.sort(rng.choice(ends[-1], max(1, round(MASKED * ends[-1])), replace=False)))
        wanted, ids = original[at], ids.index_fill(0, at, MASK_ID)
    packed = Batch(
        input_ids=ids,
        segment_ids=torch.zeros_like(ids),
        position_ids=torch.cat([torch.arange(n) for n in sizes]),
        cu_seqlens=torch.from_numpy(ends),
        max_length=max(sizes),
        row_ids=torch.arange(rows),
        labels=torch.from_numpy(rng.integers(0, 2, rows)),
        mlm_positions=at,
        mlm_labels=wanted,
    )
    wide, mask, labels = (torch.zeros(rows, max(sizes), dtype=torch.long) for _ in range(3))
    labels.fill_(-100)
    answers = torch.full_like(ids, -100)
    if at is not None and wanted is not None:
        answers[at] = wanted
    for row, (first, last) in enumerate(itertools.pairwise(ends)):
        wide[row, : last - first], mask[row, : last - first] = ids[first:last], 1
        labels[row, : last - first] = answers[first:last]
    return Rows(packed, wide, mask, labels)


def theirs(kind: str, layers: int, hidden: int, heads: int) -> nn.Module:
    """A Hugging Face BERT with random weights and SDPA. kind: the class's name after `BertFor`, or Model."""
    config = transformers.BertConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * hidden
    )
    config._attn_implementation = "sdpa"
    return getattr(transformers, "BertModel" if kind == "Model" else f"BertFor{kind}")(config).eval()


def ours(source: nn.Module) -> Model:
    """Our model with the same weights, through the names by which folders are read."""
    c: Any = source.config
    heads = {"BertForMaskedLM": "masked_lm", "BertForSequenceClassification": "classification"}
    kind: Any = heads.get(type(source).__name__)
    config = EncoderConfig.uniform(
        vocabulary=c.vocab_size,
        hidden=c.hidden_size,
        layers=c.num_hidden_layers,
        heads=c.num_attention_heads,
        feed_forward=c.intermediate_size,
        pooler=kind != "masked_lm",
    )
    head = HeadConfig(kind) if kind else None
    carried = {head.name: head} if head else {}
    state = source.state_dict()
    model = Model(config, carried)
    names = family.load_families()["bert"].names(config, carried)
    model.load_state_dict({our: state[their].clone() for our, their in names.items()})
    return model.eval()


@dataclass(frozen=True)
class Figure:
    """One way beside the first: milliseconds (median), and how many times faster (median, low and high quartile).

    cpu_share: CPU seconds over wall seconds and threads; far below 1, others had the processor.
    """

    way: str
    milliseconds: float
    ratio: float
    low: float
    high: float
    cpu_share: float


def in_turns(ways: Mapping[str, Call], rounds: int, clock: str = "wall", warmup: int = 1) -> list[Figure]:
    """Each way once per round; the first is what the others are compared with."""
    wall: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(-warmup, rounds):
        for way, call in ways.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            call(number)
            if number >= 0:
                wall[way].append(time.perf_counter() - began)
                cpu[way].append(time.process_time() - cpu_began)
    times = wall if clock == "wall" else cpu
    base = next(iter(times.values()))
    figures = []
    for way, taken in times.items():
        ratios = sorted(b / t for b, t in zip(base, taken, strict=True))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        share = sum(cpu[way]) / sum(wall[way]) / torch.get_num_threads()
        figures.append(Figure(way, 1000 * statistics.median(taken), statistics.median(ratios), low, high, share))
    return figures


def arguments(text: str, rounds: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of each way (default {rounds})")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: the free cores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: for a busy machine, one thread")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


def context(args: argparse.Namespace) -> dict[str, str]:
    """Where the figures come from: without these they must not be compared."""
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return {
        **device.describe(),
        "clock": args.clock,
        "rounds": str(args.rounds),
        "transformers": transformers.__version__,
        "load": load,
    }


def tell(args: argparse.Namespace, results: Sequence[Mapping[str, Any]]) -> None:
    """results: {"case", "figures", "target" (way → the ratio that is aimed at), "notes"} per case."""
    if args.json:
        rows = [{**r, "figures": [asdict(figure) for figure in r["figures"]]} for r in results]
        print(json.dumps({"context": context(args), "results": rows}))
        return
    print(" · ".join(f"{name} {value}" for name, value in context(args).items()))
    for result in results:
        print(f"\n{result['case']}" + (f"  ({result['notes']})" if result.get("notes") else ""))
        for f in result["figures"]:
            aim = result.get("target", {}).get(f.way)
            beside = f"   prototype {aim}: {100 * f.ratio / aim:.0f} %" if aim else ""
            print(f"  {f.way:34} {f.milliseconds:10.1f} ms  {f.ratio:6.2f}x  ({f.low:.2f}..{f.high:.2f}){beside}")
    if args.clock == "wall" and any(f.cpu_share < QUIET for result in results for f in result["figures"]):
        print("\nOthers used this processor: wall times are not worth keeping. Try again, or --clock cpu --threads 1.")
