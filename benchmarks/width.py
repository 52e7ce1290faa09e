"""What cutting heads and feed-forward neurons does to a model before recovery, for every importance.

    python -m benchmarks.width FOLDER --data DATA [--keep 0.5] [--rows 512] [--importance NAME ...] [--threads 1]

For each importance the heads and neurons of FOLDER, a fine-tuned classifier, are cut to the share that is kept, once
the same numbers in each layer and once each layer its own at equal operations. Prints the KL divergence from the whole
model and the accuracy on validation rows; nothing is trained.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from compress import registry
from compress.data.batches import evaluation_batches
from compress.data.randomness import spread
from compress.data.sources import open_table
from compress.data.tasks import task_of
from compress.data.tokenizer import Tokenizer
from compress.encoder.cutting import cut
from compress.encoder.inference import PreparedModel, prepare
from compress.modelfolder.folder import load_model
from compress.prune_width import search, selection
from compress.prune_width.costs import Costs, Counts, operations, uses
from compress.prune_width.refit import refit
from compress.prune_width.study import ANSWERS, WidthStudy, divergence
from compress.prune_width.subject import PACKAGE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--keep", type=float, default=0.5)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--importance", nargs="+", default=sorted(registry.parts(PACKAGE)))
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    loaded = load_model(asked.folder, require={"task"}, keep={"task"})
    table = open_table(asked.data, expect_labels=loaded.label_names or None)
    task, tokenizer = task_of(table.task, table.settings), Tokenizer.from_files(loaded.tokenizer_files)
    train, held = (task.encode(tokenizer, table.split(s), max_length=64) for s in ("train", "validation"))
    rows = train.take(spread(len(train), min(asked.rows, len(train)), 0, "width-study"))
    text, validation = (list(evaluation_batches(x, 4096)) for x in (rows, held))
    study, whole = WidthStudy(loaded.model, text), prepare(loaded.model)
    costs = operations(loaded.config, loaded.heads, 128)
    budget = costs.fixed + asked.keep * (costs.most - costs.fixed)

    def accuracy(model: PreparedModel) -> float:
        right = 0
        for batch in validation:
            logits = model(batch, ANSWERS).logits
            assert logits is not None
            assert batch.labels is not None
            right += int((logits.argmax(1) == batch.labels).sum())
        return 100 * right / len(held)

    print(f"whole model: accuracy {accuracy(whole):.2f} % on {len(held)} validation rows")
    for kind in asked.importance:
        part = registry.load(PACKAGE, kind)()
        begin = time.process_time()
        scores = part(study)
        alike = search.share(Counts.of(loaded.config), asked.keep)
        for how, counts in (("alike", alike), ("uneven", _uneven(study, scores, alike, costs, budget, part.in_loss))):
            kept = selection.highest(scores, counts)
            if part.rearranges:
                kept = selection.rearranged(kept, study.gradients("labels"))
            made = cut(loaded.model, kept)
            if part.refits:
                refit(made, loaded.model, kept, text, lambda: None)
            ready = prepare(made)
            print(
                f"{kind:15} {how:7} KL {divergence(ready, whole, validation):.3f}  accuracy {accuracy(ready):.2f} %"
                f"  operations {100 * costs.of(counts) / costs.most:.1f} %  {time.process_time() - begin:.0f} s of CPU",
                flush=True,
            )


def _uneven(study: WidthStudy, scores, alike: Counts, costs: Costs, budget: float, in_loss: bool) -> Counts:
    if in_loss:
        return search.uneven(scores, costs, budget)
    made = []
    for part, tables, counts in (
        ("attention", scores.heads, alike.heads),
        ("feed_forward", scores.neurons, alike.neurons),
    ):
        weights = uses(study.model.config, part)
        made.append(tuple(search.of_kind(tables, weights, sum(n * w for n, w in zip(counts, weights, strict=True)))))
    return Counts(*made)


if __name__ == "__main__":
    main()
