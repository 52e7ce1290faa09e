"""What a cascade is made of: models of one task with the same labels, and the rows that decide and measure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compress.console import Console
from compress.contracts import Progress
from compress.contracts.confidence import CONFIDENCE, LEAST, MOST
from compress.data.tables.label_order import outputs_in_order
from compress.data.tables.table import Table
from compress.data.tasks import for_head
from compress.data.text.texts import find_overlap
from compress.encoder.config.encoder import HeadConfig
from compress.errors import UserError
from compress.measure.calibration import FEWEST_ROWS
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.meta import FolderMeta
from compress.onnx.runtimes import Runtime
from compress.predict.cascade import refuse_chunks
from compress.report.rows import title
from compress.stages.shared.proof import SPLIT, format_points, require_enough_rows
from compress.stages.shared.task_head import ONE_LABEL, check_same_task, head_of
from compress.stages.shared.validation import task_choice
from evaluation.learn_then_test import draw_proposing


@dataclass(frozen=True)
class _Stoppable:
    """progress: that is shown.  check_stop: called at each update."""

    progress: Progress
    check_stop: Callable[[], None]

    def update(self, done: int, **figures: float | str) -> None:
        self.check_stop()
        self.progress.update(done, **figures)


@dataclass(frozen=True)
class CascadeRequest:
    """models: name → folder, in any order.  table: labelled; validation rows choose, test rows measure.  max_length:
    tokens of a text.  settings: of the task.  max_drop: points of accuracy that may be lost against the largest
    model.  accepted: names of models whose loss was found to be within the bound before.  runtime: of all models; None:
    of each its own.  confidence: percent, with which the loss on other texts is within the bound.  rows_chose_models:
    the validation rows chose the models before, as in a fit, so that this confidence does not hold and is not told.
    check_stop: called while models are scored and timed; raises Stopped where a signal asked for it."""

    models: Mapping[str, Path]
    table: Table
    max_length: int
    settings: Mapping[str, Any]
    max_drop: float
    console: Console
    device: str = "cpu"
    runtime: Runtime | None = None
    accepted: Sequence[str] = ()
    confidence: float = CONFIDENCE
    rows_chose_models: bool = False
    check_stop: Callable[[], None] = lambda: None

    @property
    def proposing(self) -> np.ndarray:
        """(N,) bool: the validation rows that propose what the others test (`evaluation.learn_then_test`)."""
        return draw_proposing(len(self.table.split(SPLIT)))

    @contextlib.contextmanager
    def watch(self, label: str, total: int | None, unit: str = "steps") -> Iterator[Progress]:
        """`Console.slow_progress`, whose updates end where a signal asked for it."""
        with self.console.slow_progress(label, total, unit) as progress:
            yield _Stoppable(progress, self.check_stop)

    def check(self) -> None:
        """Raise UserError for models that do not make a cascade, and for data without rows of their own to choose on
        and to measure."""
        if not 0 <= self.max_drop <= 100:  # nor NaN
            raise UserError(
                f"{self.max_drop:g} points is not possible", where="--max-drop", do="give 0 to 100, such as 0.5"
            )
        if not LEAST <= self.confidence <= MOST:  # nor NaN
            raise UserError(
                f"{self.confidence:g} % is not possible", where="--confidence",
                do=f"give {LEAST:g} to {MOST:g}, such as {CONFIDENCE:g}",
            )  # fmt: skip
        self._check_models()
        require_own_rows(self.table, self.max_drop, self.confidence)

    def note_metric(self) -> None:
        """Where accuracy is not the main metric, say which of the two decides what."""
        metric, _ = task_choice(self.table)
        if metric != "accuracy":
            self.console.note(
                f"thresholds are chosen by the accuracy lost on {SPLIT} rows; the loss of {title(metric)} is measured "
                "on the test rows"
            )

    def describe_none(self, what: str, verb: str, single: str, tested: int) -> str:
        """That a model alone was chosen. what, verb: `no early exits`, `are`.  single: that model.  tested: proposals
        that were."""
        faster, bound = f"{what} that {verb} faster than {single}", f"{format_points(self.max_drop)} of accuracy"
        if self.rows_chose_models:
            return f"{faster} passed the test of losing at most {bound} ({tested:,} tested)"
        return f"{faster} {verb} proven to lose at most {bound} ({self.confidence:g} % confidence, {tested:,} tested)"

    def _check_models(self) -> None:
        seen: dict[str, str] = {}
        first: tuple[str, Sequence[str]] | None = None
        for name, folder in self.models.items():
            info = modelfolder.inspect(folder)
            if "task" not in info.heads:
                raise UserError("the model has no task head", where=str(folder), do="fine-tune it: compress finetune")
            require_one_label(info.heads["task"], str(folder))
            require_whole_texts(info.meta, self.settings, folder)
            same = seen.setdefault(modelfolder.fingerprint(folder), name)
            if same != name:
                raise UserError(f"{same} and {name} are the same model", where=str(folder), do="remove one of them")
            first = first or (name, info.label_names)
            _require_same_labels(first, (name, info.label_names), str(folder))
            check_same_task(info.heads["task"], info.label_names, self.table.task, str(folder))


def require_one_label(head: HeadConfig, where: str) -> None:
    """Raise UserError for a model that does not give each text one label of several."""
    if head_of(head) != ONE_LABEL:
        kind = for_head(head_of(head)).kind
        raise UserError(
            f"cascades do not support {kind}, nor do early exits",
            where=where,
            do="use models that give each text one label",
        )


def require_whole_texts(meta: FolderMeta, settings: Mapping[str, Any], folder: Path) -> None:
    """Raise UserError for a model that reads long texts in chunks. settings: in place of those of the model."""
    if {**meta.task_settings, **settings}.get("long_text") == "chunk":
        refuse_chunks(folder)


def remove_chunks(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model that may be made to read long texts in chunks, with which it truncates them."""
    return {name: value for name, value in settings.items() if name not in ("long_text", "stride", "pooling")}


def require_own_rows(table: Table, max_drop: float, confidence: float = CONFIDENCE) -> None:
    """Raise UserError unless there are rows to choose on, enough for a loss of `max_drop` points, and others to measure
    on."""
    for name in (SPLIT, "test"):
        if len(table.split(name)) < FEWEST_ROWS:
            why = f"found {len(table.split(name))}, required: {FEWEST_ROWS}"
            raise UserError(f"too few {name} rows for a cascade", where="--data", why=why)
    shared = find_overlap(table.split("test"), [table.split(SPLIT)], exact=True)
    if 2 * shared.sum() >= len(shared):  # as fit certifies no model on such rows
        raise UserError(
            f"{shared.sum():,} of the {len(shared):,} test rows are also validation rows", where="--data",
            why="what is chosen on rows cannot be certified on them", do="add a validation split of other rows",
        )  # fmt: skip
    require_enough_rows(len(table.split(SPLIT)), max_drop, confidence, "--max-drop")


def require_several(models: Sequence[str]) -> None:
    """Raise UserError for one model, or none."""
    if len(models) < 2:
        raise UserError(
            "a cascade needs at least two models", where="MODELS",
            do="add a smaller or a larger one, or --exit-layers auto for early exits of this one",
        )  # fmt: skip


def require_one(models: Sequence[str]) -> None:
    """Raise UserError for several models, where early exits are requested."""
    if len(models) > 1:
        raise UserError("early exits are those of one model", where="--exit-layers", do="give one model")


def _require_same_labels(first: tuple[str, Sequence[str]], second: tuple[str, Sequence[str]], where: str) -> None:
    """first, second: name and labels of a model."""
    try:
        outputs_in_order(second[1], first[1], where=where)
    except UserError as error:
        raise UserError(
            f"{first[0]} and {second[0]} predict different labels", where=where, why=error.why,
            do="use models for the same task, with the same label names",
        ) from None  # fmt: skip
