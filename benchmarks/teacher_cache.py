"""What a teacher cache saves: training with it, filling included, against training with the live teacher.

    python benchmarks/teacher_cache.py --data "$COMPRESS_DATA/sst2" --model FOLDER --threads 1 [--rows 512] [--json]

Teachers of 6 x 384 (MiniLM, FOLDER) and of 12 x 768 (BERT-base's shape, random weights; MiniLM's tokens), each with a
student of half its layers, on the first rows of the data with their own lengths. Loss: soft targets of the task, alone
and with the hidden states of each student layer. A step is what `compress distill` does: forward, backward, clipped
AdamW, 32 rows. Live and cached steps take turns on the same batches; filling and its report are timed
once, as a whole. Of e epochs the ratio is

    e x live epoch / (filling + e x cached epoch)

--workers: instead, commands of `compress distill --teacher-cache` that fill a cache of --rows texts and of a quarter of
them, and are then stopped, in one process and by two workers, in turns: the difference is the cost of a row.

All times are CPU seconds of this process, so that others on the machine disturb little.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from commands import describe_prices, price_rows

from compress.contracts import Needs, TrainingPlan, unwatched
from compress.data.batches.examples import encode_texts
from compress.data.batches.fixed_rows import get_fixed_rows
from compress.data.batches.task_batches import TaskBatches
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.layer_maps import ModelPair, resolve
from compress.encoder.infer.prepare import DTYPES, prepare
from compress.encoder.modules.model import Model
from compress.encoder.reshape.students import take_layers
from compress.modelfolder.folder import FolderMeta, load_model, save_model
from compress.objectives import hidden_mse, soft_targets
from compress.stages.distill.cache.fields import Settings, fields_of
from compress.stages.distill.cache.store import Identity, TeacherCache, Work
from compress.stages.distill.cache.teacher import CachedTeacher
from compress.stages.shared.stage import StageServices
from compress.storage import atomic
from compress.training import memory, precision
from compress.training.module import StageModule
from compress.training.optimizer import Optimizer

EPOCHS = (1, 3, 10)
LOSSES = ("soft targets", "soft targets and hidden states")
PLAN = TrainingPlan(steps=1, batch_rows=32)
HEAD = {"task": HeadConfig("classification", labels=2)}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, help="a folder with train.jsonl, a `text` a line")
    p.add_argument("--model", required=True, help="MiniLM's folder, whose tokenizer and weights are taken")
    p.add_argument("--rows", type=int, default=512)
    p.add_argument("--steps", type=int, default=12, help="timed steps a case")
    p.add_argument("--shapes", nargs="+", choices=["minilm", "base"], default=["minilm", "base"])
    p.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--bits", type=int, choices=[8, 16, 32], default=16)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--workers", action="store_true")
    p.add_argument("--rounds", type=int, default=2, help="of --workers")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    if args.workers:
        return print(compare_workers(args))
    torch.set_num_threads(args.threads)
    memory.keep_pages()
    rows = batches(args)
    if not args.json:
        print(f"{args.rows} rows, {rows.examples.lengths.mean():.1f} tokens each, {args.precision}, {args.bits} bits")
    found = []
    for shape in args.shapes:
        for loss in LOSSES:
            found.append(case(args, rows, shape, loss))
            if not args.json:
                print(line(found[-1]), flush=True)
    if args.json:
        print(json.dumps(found, indent=2))


def compare_workers(args: Any) -> str:
    """What a row of a cache costs by one process and by two workers."""
    numbers, model = itertools.count(), load_model(args.model, new_heads=HEAD)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        meta = FolderMeta(task="classification", label_names=("negative", "positive"), max_length=64)
        save_model(place / "teacher", model.model, tokenizer_files=model.tokenizer_files, meta=meta)
        with open(Path(args.data) / "train.jsonl", encoding="utf-8") as file:
            lines = list(itertools.islice(file, args.rows + 64))
        for split in ("train", "validation", "test"):
            atomic.write_text(place / f"data/{split}.jsonl", "".join(lines[:64]))
        few, many = args.rows // 4, args.rows
        for rows in (few, many):
            texts = [json.dumps({"text": json.loads(line)["text"]}) for line in lines[64 : 64 + rows]]
            atomic.write_text(place / f"{rows}.jsonl", "\n".join(texts))

        def fill(rows: int) -> list[str]:
            number = next(numbers)
            words = ["distill", "--recipe", "distilbert-task", "--teacher", "./teacher", "--data", "data"]
            words += [
                "--unlabelled",
                f"{rows}.jsonl",
                "--teacher-cache",
                f"cache-{number}",
                "--output",
                f"run-{number}",
            ]
            words += ["--set", "stages.0.training.steps=1000", "--set", "stages.0.checks=off"]
            return [*words, "--threads", str(args.threads), "--quiet"]

        ways = {"one process": fill, "two workers": lambda rows: [*fill(rows), "--workers", "2"]}
        with contextlib.chdir(place):
            prices = price_rows(ways, few, many, args.rounds, until="cache-*/task/fidelity/*.json")
        return describe_prices(prices)


def line(row: dict[str, Any]) -> str:
    """One case as people read it."""
    ratios = ", ".join(f"{e} epochs {row[f'ratio_{e}']:.2f}x" for e in EPOCHS)
    return (
        f"{row['case']}: live {row['live_ms']:.0f} ms a step, cached {row['cached_ms']:.0f}, {row['step_ratio']:.2f}x; "
        f"filling {row['fill_s']:.1f} s of {row['epoch_s']:.1f} s a live epoch, {row['mb']:.2f} MB; {ratios}; "
        f"KL {row['kl']:.1g}, max error {row['max_error']:.1g}"
    )


def batches(args: Any) -> TaskBatches:
    """The first rows of the data, in the recipe's order of one epoch."""
    with open(Path(args.data) / "train.jsonl", encoding="utf-8") as file:
        texts = [json.loads(next(file))["text"] for _ in range(args.rows)]
    files = load_model(args.model).tokenizer_files
    examples = encode_texts(Tokenizer.from_files(files), texts, max_length=64)
    return TaskBatches(examples, PLAN.batch_rows, PLAN.max_tokens, 0)


def teacher_of(args: Any, shape: str) -> Model:
    """In evaluation mode, with a head of two classes."""
    if shape == "minilm":
        return load_model(args.model, new_heads=HEAD).model.eval()
    config = EncoderConfig.uniform(vocabulary=30522, hidden=768, layers=12, heads=12, feed_forward=3072)
    return Model(config, HEAD).initialize(0).eval()


def case(args: Any, source: TaskBatches, shape: str, loss: str) -> dict[str, Any]:
    """One teacher and one loss: seconds of live and cached steps in turns, and of filling."""
    teacher = teacher_of(args, shape)
    depth = teacher.config.depth
    student = take_layers(teacher, list(range(1, depth, 2)), {"task"})
    pair = ModelPair(student.config, teacher.config, resolve("uniform", student.config.depth, depth))
    live = prepare(teacher, args.precision)
    rows = get_fixed_rows(source)
    assert rows is not None
    with tempfile.TemporaryDirectory() as folder:
        objectives = _objectives(loss, pair)
        needs = Needs()
        for _, objective in objectives.values():
            needs |= objective.teacher_needs
        cache = TeacherCache(Path(folder) / "cache", Identity("t", "t", 64, rows.fingerprint, args.precision), rows)
        settings = Settings(args.bits, None, args.precision)
        held = cache.hold(fields_of(needs, teacher.config, teacher.head_configs, settings))
        kept = CachedTeacher(teacher.config, held, None, DTYPES[args.precision])
        begin = time.process_time()
        figures = cache.fill(Work(lambda: live, kept, "cpu", lambda _: None, StageServices(unwatched, lambda: None)))
        fill = time.process_time() - begin
        seconds: dict[str, list[float]] = {"live": [], "cached": []}
        stages = {
            name: StageModule(student.train(), _objectives(loss, pair), asked)
            for name, asked in (("live", live), ("cached", kept))
        }
        optimizer = Optimizer(stages["live"], PLAN)
        for index in range(args.steps + 1):
            for name in ("live", "cached") if index % 2 else ("cached", "live"):
                begin = time.process_time()
                _step(stages[name], source.step(0, index % source.steps(0)), optimizer, args.precision)
                if index:  # the first one warms up
                    seconds[name].append(time.process_time() - begin)
    each = {name: statistics.mean(values) for name, values in seconds.items()}
    steps = source.steps(0)
    ratios = {f"ratio_{e}": e * steps * each["live"] / (fill + e * steps * each["cached"]) for e in EPOCHS}
    return {
        "case": f"{shape}, {loss}", "live_ms": 1000 * each["live"], "cached_ms": 1000 * each["cached"],
        "step_ratio": each["live"] / each["cached"], "fill_s": fill, "epoch_s": steps * each["live"],
        "mb": figures["cache_mb"], "kl": figures["cache_kl"], "max_error": figures["cache_max_error"], **ratios,
    }  # fmt: skip


def _objectives(loss: str, pair: ModelPair) -> dict[str, tuple[float, Any]]:
    found: dict[str, tuple[float, Any]] = {"soft_targets": (1.0, soft_targets.Objective())}
    if loss == LOSSES[1]:
        found["hidden_mse"] = (1.0, hidden_mse.Objective())
    for _, objective in found.values():
        if hasattr(objective, "bind"):
            objective.bind(pair)
    return found


def _step(stage: StageModule, parts: Any, optimizer: Optimizer, how: Any) -> None:
    optimizer.clear()
    total = torch.zeros(())
    for batch in parts:
        with precision.autocast(how, torch.device("cpu")):
            terms = stage(batch)
        loss = torch.stack([term.weight * term.value for term in terms.values()]).sum()
        loss.backward()
        total = total + loss.detach()
    optimizer.step(total)


if __name__ == "__main__":
    main()
