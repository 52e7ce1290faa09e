"""What cutting heads and feed-forward neurons does to a model before recovery, for every importance.

    python -m benchmarks.width FOLDER --data DATA [--keep 0.5] [--rows 512] [--importance NAME ...] [--refit]

For each importance the heads and neurons of FOLDER, a fine-tuned classifier, are cut to the share that is kept, once
the same numbers in each layer and once each layer its own at equal operations. Prints the KL divergence from the whole
model and the accuracy on validation rows. Nothing is trained, but for the importances that train. --refit: output
matrices are fitted to what is left for every importance, and not for `reconstruction` alone.
"""

from __future__ import annotations

import argparse
import functools
import time
from pathlib import Path

import torch

from compress import registry
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.randomness import draw_spread_rows
from compress.data.batches.task_batches import TaskBatches
from compress.data.reading.sources import open_table
from compress.data.tasks import task_of
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.infer.prepare import PreparedModel, prepare
from compress.encoder.reshape.cut import prune_units
from compress.modelfolder.folder import load_model
from compress.stages.prune_width import selection
from compress.stages.prune_width.costs import operations
from compress.stages.prune_width.refit import refit
from compress.stages.prune_width.spec import Spec
from compress.stages.prune_width.study import ANSWERS, Target, WidthStudy
from compress.stages.prune_width.subject import PACKAGE, STEP_ROWS
from compress.stages.prune_width.targets import ratio_counts
from compress.stages.shared.divergence import divergence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--keep", type=float, default=0.5)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--importance", nargs="+", default=sorted(registry.parts(PACKAGE)))
    parser.add_argument("--refit", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    loaded = load_model(asked.folder, require={"task"}, keep={"task"})
    table = open_table(asked.data, expect_labels=loaded.label_names or None)
    task, tokenizer = task_of(table.task, table.settings), Tokenizer.from_files(loaded.tokenizer_files)
    train, held = (task.encode(tokenizer, table.split(s), max_length=64) for s in ("train", "validation"))
    rows = train.take(draw_spread_rows(len(train), min(asked.rows, len(train)), 0, "width-study"))
    text, validation = (list(evaluation_batches(x, 4096)) for x in (rows, held))
    study = WidthStudy(loaded.model, text, training=TaskBatches(rows, STEP_ROWS, 4096, 0))
    whole, costs = prepare(loaded.model), operations(loaded.config, loaded.heads, 128)

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
        for uneven in (False, True):
            begin = time.process_time()
            spec = Spec(kind="prune_width", ratio=1 - asked.keep, uneven=uneven)
            study.target, study.trained = functools.partial(Target, asked.keep, asked.keep, uneven=uneven), None
            scores = part(study)
            counts = ratio_counts(spec, loaded.config, loaded.config, scores, costs, part.in_loss)
            kept = selection.select_highest(scores, counts)
            if part.rearranges:
                kept = selection.exchange_units(kept, study.gradients("labels"))
            made = prune_units(study.trained or loaded.model, kept)
            if part.refits or asked.refit:
                refit(made, loaded.model, kept, text, lambda: None)
            ready = prepare(made)
            print(
                f"{kind:15} {'uneven' if uneven else 'alike':7} KL {divergence(ready, whole, validation):.3f}"
                f"  accuracy {accuracy(ready):.2f} %  operations {100 * costs.of(counts) / costs.maximum:.1f} %"
                f"  {time.process_time() - begin:.0f} s of CPU",
                flush=True,
            )


if __name__ == "__main__":
    main()
