"""Labelled data encoded for one model: the rows that a stage trains on, and those that validate it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from compress.contracts import Batch, BatchSource, NoiseSpec, TrainingPlan
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import Examples, join, require_labels
from compress.data.batches.randomness import stream
from compress.data.batches.task_batches import TaskBatches
from compress.data.tables.table import Rows, Table, spread_places
from compress.data.task import Task
from compress.data.tasks import task_of
from compress.data.text.noise import EachEpoch, add_typos_to_rows
from compress.data.text.tokenizer import Tokenizer, check_length
from compress.modelfolder.folder import LoadedModel
from compress.stages.shared.labelled_data import task_max_length
from compress.stages.shared.stage import LABELLED, TAUGHT, StageContext
from compress.stages.shared.unlabelled_rows import warn_of_unknown_tokens
from compress.storage.spill import concatenate

VALIDATION_ROWS = 2000
"""Most rows of one validation in a training of automatic length."""
SPREAD_TOKENS = 4096
"""Real tokens that are read at once where nothing is trained."""


def validation_rows(table: Table, plan: TrainingPlan | None) -> Rows:
    """The rows on which the model is validated while it trains: all, but a part that is evenly spaced where the length
    is automatic, and validations are many."""
    rows = table.split("validation")
    if plan is None or not plan.is_automatic or len(rows) <= VALIDATION_ROWS:
        return rows
    return rows.take(spread_places(len(rows), VALIDATION_ROWS))


@dataclass(frozen=True)
class TaskData:
    """A table, encoded for one model. train: labelled rows, then the unlabelled and the augmented ones that are asked
    for.

    mistyped: epoch → the same rows as `train` with that epoch's noise.  rows: what `train` was made of, in its order.
    held_out: what `validation` was made of.  taught: the logits of teacher columns, (N, C) of the rows of `train`, or
    (T, C) of its tokens where words are tagged; None without such columns.
    """

    train: Examples
    validation: Examples
    vocabulary_sha: str
    mistyped: Callable[[int], Examples] | None = None
    rows: Sequence[Rows] = ()
    held_out: Rows | None = None
    taught: np.ndarray | None = None

    @classmethod
    def encode(
        cls,
        table: Table,
        loaded: LoadedModel,
        context: StageContext,
        *,
        plan: TrainingPlan | None = None,
        unlabelled: Rows | None = None,
        augmented: Rows | None = None,
        noise: NoiseSpec | None = None,
    ) -> TaskData:
        """plan: of the training, which says how many rows validate it.  unlabelled, augmented: more rows to learn from.
        noise: of all texts but the validation's, anew for each epoch.

        Raises UserError when the lengths or the tokenizer do not fit the model.
        """
        where = str(loaded.path)
        tokenizer = Tokenizer.from_files(loaded.tokenizer_files, where=where)
        tokenizer.check_fits(loaded.config.vocabulary, where=where)
        length = task_max_length(context.recipe)
        check_length(length, loaded.config.max_positions, where="data.max_length")
        task = task_of(table.task, table.settings)
        sources = [table.split("train"), *(rows for rows in (unlabelled, augmented) if rows is not None)]
        found = [encode_with_columns(task, tokenizer, rows, length) for rows in sources]
        parts = [part for part, _ in found]
        said = [values for _, values in found if values is not None]
        taught = concatenate(said) if len(said) == len(found) else None
        if unlabelled is not None:
            warn_of_unknown_tokens(tokenizer, parts[0], parts[1])
        train = join(*parts)
        if train.cut:
            longest = loaded.config.max_positions
            context.say(
                f"{train.cut:,} of {len(train):,} training texts are longer than {length} tokens and were truncated"
                + (f"; --max-length keeps more of them (at most {longest:,})" if length < longest else "")
            )
        for note in train.notes:
            context.say(f"training: {note}")
        held_out = validation_rows(table, plan)
        validation = task.encode(tokenizer, held_out, max_length=length)
        for part in (train, validation):
            require_labels(part, len(table.label_names), table.display_name)
        if noise is None:
            return cls(train, validation, tokenizer.vocabulary_sha, rows=sources, held_out=held_out, taught=taught)

        def mistyped(epoch: int) -> Examples:
            random = stream("task-noise", context.seed, epoch)
            noisy = [add_typos_to_rows(rows, noise, random) for rows in sources]
            return join(*(task.encode(tokenizer, rows, max_length=length) for rows in noisy))

        return cls(train, validation, tokenizer.vocabulary_sha, mistyped, sources, held_out, taught)

    def count_rows(self, table: Table) -> dict[str, int]:
        """How many of the training rows have labels, and how many only the teacher's."""
        task = task_of(table.task, table.settings)
        taught = sum(int(task.find_unlabelled(rows.labels).sum()) for rows in self.rows)
        return {LABELLED: sum(map(len, self.rows)) - taught, TAUGHT: taught}

    def source(self, plan: TrainingPlan, seed: int, *, by_query: bool = False) -> BatchSource:
        """Training batches in an order that depends on the seed alone. by_query: see `TaskBatches`."""
        mistyped = self.mistyped
        how: dict[str, Any] = {"rows_per_step": plan.batch_rows, "max_tokens": plan.max_tokens, "seed": seed}
        if mistyped is None:
            return TaskBatches(self.train, **how, by_query=by_query)
        made = lambda epoch: TaskBatches(mistyped(epoch), **how, by_query=by_query)  # noqa: E731
        return EachEpoch(made, self.train.fingerprint)


def encode_with_columns(
    task: Task, tokenizer: Tokenizer, rows: Rows, length: int
) -> tuple[Examples, np.ndarray | None]:
    """Rows with what teacher columns say of them, in the order of the rows or tokens."""
    if rows.taught is None:
        return task.encode(tokenizer, rows, max_length=length), None
    # Numbers that no two rows share: rows of several files may.
    part = task.encode(tokenizer, replace(rows, numbers=np.arange(len(rows), dtype=np.int64)), max_length=length)
    taught = task.encode_taught(part, rows)
    return replace(part, numbers=rows.numbers[part.numbers]), taught


def sample_batches(examples: Examples, labelled: int, rows: int, context: StageContext) -> list[Batch]:
    """So many rows of the first `labelled` ones, evenly spaced, on the device of `context`, for ranges."""
    places = torch.linspace(0, labelled - 1, min(rows, labelled)).round().long().unique()
    few = evaluation_batches(examples.take(places.numpy()), SPREAD_TOKENS)
    return [batch.to(context.device) for batch in few]
