"""What the verbs share: what a stage is given, what it prepares, and how it validates while training.

A stage turns model folders into a model folder. `prepare` builds the student, the data and what to minimise; the
training loop runs; `finish` says what to write. The pipeline drives all stages alike, so each can be resumed, cached
and started from a folder of the user's own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import nn

from compress.contracts import (
    Batch,
    BatchSource,
    EncoderOutput,
    Needs,
    NoiseSpec,
    Teacher,
    TrainingPlan,
    Watch,
    unwatched,
)
from compress.data.batches.batches import (
    EvaluationBatches,
    TaskBatches,
    copy_to_host,
    evaluation_batches,
    restore_order,
    restore_outputs,
)
from compress.data.batches.examples import Examples, join, require_labels
from compress.data.batches.randomness import stream
from compress.data.reading.corpus import Corpus
from compress.data.reading.places import is_generated
from compress.data.reading.pool import PoolRequest, TextVectors
from compress.data.reading.sources import open_table
from compress.data.reading.teacher_columns import TeacherColumns
from compress.data.tables import groups
from compress.data.tables.table import Rows, Table, format_count, spread_places
from compress.data.task import METRIC, Task
from compress.data.tasks import find_bound, for_head, task_of
from compress.data.text import texts
from compress.data.text.noise import EachEpoch, add_typos_to_rows
from compress.data.text.tokenizer import Tokenizer, check_length
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError, printable, without_folders
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.ensemble import Ensemble
from compress.modelfolder.family import stock_heads
from compress.modelfolder.folder import DataNote, FolderInfo, FolderMeta, LoadedModel, Parent, RecipeNote
from compress.modelfolder.resolve import model_name
from compress.objectives.hard_labels import Objective as HardLabels
from compress.recipe import Recipe
from compress.storage.spill import concatenate, pieces
from compress.tracking import TrackedRun
from compress.training.length import choose_length, fixed_length
from compress.training.precision import autocast
from compress.training.rate import choose_rate
from compress.training.schedule import total_steps
from compress.training.time_limit import format_minutes
from evaluation.quality.retrieval import cosines
from evaluation.representation.neighbours import NEIGHBOURS, neighbour_overlap

_log = logging.getLogger("compress.stages")

VALIDATION_TOKENS = 8192
KEPT_TOKENS = 1 << 20
"""Tokens of validation rows whose batches are kept from one validation to the next: 40 MB."""
VALIDATION_ROWS = 2000
"""Most rows of one validation in a training of automatic length."""
SPREAD_TOKENS = 4096
"""Real tokens that are read at once where nothing is trained."""
COMPARED_TEXTS = 1000
"""Texts whose neighbours are looked for among each other."""
FINDINGS = "findings.json"
"""What was found while a stage was trained, in its folder: a table as MLflow shows it."""
LABELLED, TAUGHT = "labelled", "teacher_labelled"
"""Training rows that have a label of their own, and those that only the teacher labels."""
HELD_OUT = "held_out"
"""Rows without labels that are not trained on: they tell when to stop."""
TEACHER_RIGHT, TEACHER_CONFIDENT, TEACHER_NOISE = "teacher_right", "teacher_confident", "teacher_contradicts"
"""Of the labelled training rows, shares: the teacher gives their label; its probability for any label is above 95 %;
both above 95 % and another label, which is how many labels are wrong at least."""
FINDING_COLUMNS = ("step", "check", "finding", "do")


@dataclass(frozen=True)
class StageContext:
    """What a stage may read.

    folder: the stage's work folder.  model, tokenizer: folders from an earlier stage or a flag.  teacher: the folder
    whose task head teaches; general_teacher: the one whose masked-LM head teaches.  ensemble: who teaches a task
    together, `teacher` among them as their lead; None: `teacher` alone.  table, corpus: opened on first use.  workshop:
    for long work while a stage is prepared.  opened: the table where it is open already.  show: (title, columns, rows)
    of a table to the terminal.
    """

    recipe: Recipe
    folder: Path
    seed: int
    device: str
    precision: Literal["fp32", "bf16"]
    table: Callable[[], Table]
    corpus: Callable[[], Corpus]
    model: Path | None = None
    tokenizer: Path | None = None
    teacher: Path | None = None
    general_teacher: Path | None = None
    ensemble: Ensemble | None = None
    say: Callable[[str], None] = lambda _: None
    opened: Callable[[], Table | None] = lambda: None
    workshop: StageServices = field(default_factory=lambda: StageServices(unwatched, lambda: None))
    show: Callable[[str, Sequence[str], Sequence[Sequence[object]]], None] = lambda title, columns, rows: None


@dataclass
class StageOutput:
    """What to write as the stage's model folder: a model with its meta, or bare files (a tokenizer).

    files: of the tokenizer.  beside: other files of the model's folder, by name.
    """

    model: Model | None
    files: Mapping[str, bytes]
    meta: FolderMeta | None = None
    beside: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class StageServices:
    """Where a stage works before its first step. progress: shows how far the work is.

    stop: raises Stopped where a signal asked for it.
    """

    progress: Watch
    stop: Callable[[], None]


Opening = Callable[[], Mapping[str, float]]
"""What is done before the first step → figures about it."""


@dataclass
class PreparedStage:
    """A stage ready to run. module None: there is nothing to train (a tokenizer was trained in `prepare`).

    identity: what must be the same for a checkpoint to be continued.  select: (metric, "max" or "min") of the best.
    plan: with a learning rate.  watched: further metrics that keep a training of automatic length going.
    opening: work before the first step, which may be long.  told: tells the run what `prepare` found.
    closing: (module, steps that its weights are of) → figures measured once, at the end.  diagnosis: what looks on.
    rows: of a task: LABELLED and TAUGHT → how many rows of each are trained on, and shares such as TEACHER_RIGHT.
    """

    finish: Callable[[], StageOutput]
    module: nn.Module | None = None
    source: BatchSource | None = None
    plan: TrainingPlan | None = None
    validate: Callable[[nn.Module], Mapping[str, float]] | None = None
    select: tuple[str, Literal["max", "min"]] | None = None
    watched: Mapping[str, Literal["max", "min"]] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    opening: Opening | None = None
    told: Callable[[TrackedRun], None] | None = None
    closing: Callable[[nn.Module, int], Mapping[str, float]] | None = None
    diagnosis: Diagnosis | None = None
    rows: Mapping[str, float] = field(default_factory=dict)

    def total_steps(self) -> int:
        """Optimizer steps from start to end, the most where the length is automatic."""
        assert self.source is not None
        assert self.plan is not None
        return total_steps(self.plan, self.source)

    def least_steps(self) -> int:
        """Optimizer steps that are made in any case."""
        assert self.source is not None
        assert self.plan is not None
        if self.plan.is_automatic:
            return choose_length(self.plan, self.source.steps(0)).least
        return total_steps(self.plan, self.source)


class Diagnosis(Protocol):
    """Looks on while a stage trains, and tells what is wrong."""

    def begin(self, log: TrackedRun) -> None:
        """Training begins; this is its journal."""
        ...

    def observe(self, module: nn.Module, history: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        """A validation was made: see `TrainingContext.observe`."""
        ...

    def close(self) -> Sequence[Sequence[object]]:
        """Training has ended; what was found, a row of FINDING_COLUMNS each."""
        ...


@dataclass(frozen=True)
class ModelShape:
    """What is known of a model before it exists. vocabulary: equal for equal tokenizers, None while it is unknown.
    masked_lm: whether it can tell hidden pieces.  config: its whole shape, None while it is unknown.  embeds: whether
    its task is the vector of a text."""

    depth: int
    positions: int
    vocabulary: str | None = None
    masked_lm: bool = True
    config: EncoderConfig | None = None
    embeds: bool = False


def read_shape(folder: Path) -> ModelShape:
    """The outline of a model that is there."""
    info = modelfolder.inspect(folder)
    digest = modelfolder.vocabulary_digest(folder)
    embeds = "embedding" in {head.kind for head in info.heads.values()}
    return ModelShape(info.config.depth, info.config.max_positions, digest, "mlm" in info.heads, info.config, embeds)


class Stage(Protocol):
    """One kind of stage; found by the registry as `compress/<kind>/stage.py`."""

    def __init__(self, spec: Any, context: StageContext) -> None: ...

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        """What this stage will make of the model before it (`start`), told before any stage runs.

        Raises UserError for lengths, layers and vocabularies that cannot fit. None: unknown.
        """
        ...

    def plan(self) -> list[str]:
        """What would be done, in lines, reading no weights: `--dry-run`."""
        ...

    def prepare(self) -> PreparedStage:
        """Check what the stage is given, and return the model, data and objectives to train, or a finished model.

        Raises UserError for models, labels, lengths and vocabularies that do not fit; Stopped where a signal asked.
        """
        ...


def require_folder(path: Path | None, what: str, flag: str, stage: str) -> Path:
    """`path`, or a UserError that says which flag or stage gives it."""
    if path is None:
        raise UserError(
            f"stage {stage} needs {what}", where=flag, do=f"add {flag} FOLDER, or use a recipe that creates it"
        )
    return path


# --- how long, how fast -----------------------------------------------------------------------------------------


def settle_plan(
    plan: TrainingPlan,
    source: BatchSource,
    hidden: int,
    context: StageContext,
    *,
    open_ended: bool = True,
    factor: float = 1.0,
) -> TrainingPlan:
    """The plan with what the recipe leaves to us, which is printed. hidden: hidden size of the encoder.  factor: of the
    learning rate that this size suggests.

    open_ended: training can end when a metric stops rising: something is validated, and nothing in it changes with the
    share of the steps that are done. Otherwise a length that is not given follows from the size of the data.
    """
    if plan.learning_rate is None:
        plan = plan.model_copy(update={"learning_rate": choose_rate(hidden, factor)})
        by = f"by the hidden size {hidden}" + ("" if factor == 1 else f", times {factor:g} for the parameters trained")
        context.say(f"learning rate {plan.rate:g}, {by}")
    if plan.is_automatic and not open_ended:
        steps = fixed_length(plan, source.steps(0))
        plan = plan.model_copy(update={"min_steps": steps, "max_steps": steps})
        context.say(f"training for {steps:,} steps, by the size of the data")
    return plan


def describe_task_plan(
    plan: TrainingPlan, context: StageContext, model: Path | None, factor: float = 1.0, metric: str | None = None
) -> str:
    """Length, batch size and learning rate of a training on the labelled rows, for people, as far as they are known.
    model: the folder whose encoder is trained, None while there is none.  factor: of a learning rate by its size.
    metric: what ends the training, where it is not the task's metric on the validation rows."""
    table = context.opened()
    hidden = None if model is None else modelfolder.inspect(model).config.hidden
    if table is None:
        return describe_plan(plan, hidden, factor=factor)
    metric = metric or f"validation {task_choice(table)[0]}"
    return describe_plan(plan, hidden, len(table.split("train")), metric, factor=factor)


def describe_plan(
    plan: TrainingPlan, hidden: int | None = None, rows: int | None = None, metric: str = "", *, factor: float = 1.0
) -> str:
    """Length, batch size and learning rate, for people. hidden: hidden size of the encoder.  rows: of the training
    data; both None where they are not known.  metric: what is validated.  factor: of a learning rate by the size."""
    rate = choose_rate(hidden, factor) if plan.learning_rate is None and hidden is not None else plan.learning_rate
    told = "by the hidden size of the encoder" if rate is None else f"{rate:g}"
    length = plan.length
    if plan.is_automatic:
        length = f"until {metric} stops rising" if metric else "until validation stops improving"
        if rows is not None:
            length += f" ({choose_length(plan, max(1, math.ceil(rows / plan.batch_rows)))})"
    length += "" if plan.minutes is None else f", at most {format_minutes(plan.minutes)}"
    return f"{length}, {plan.batch_rows} rows a step, learning rate {told}"


def validation_rows(table: Table, plan: TrainingPlan | None) -> Rows:
    """The rows on which the model is validated while it trains: all, but a part that is evenly spaced where the length
    is automatic, and validations are many."""
    rows = table.split("validation")
    if plan is None or not plan.is_automatic or len(rows) <= VALIDATION_ROWS:
        return rows
    return rows.take(np.linspace(0, len(rows) - 1, VALIDATION_ROWS).astype(np.int64))


# --- data -------------------------------------------------------------------------------------------------------


def open_table_of(
    recipe: Recipe,
    model: FolderInfo | None = None,
    others: Sequence[str] = (),
    *,
    bare: bool = False,
    measured: str | None = None,
    vectors: Callable[[], TextVectors] | None = None,
) -> Table:
    """The recipe's labelled data. model: one whose answers it is for: the table takes the order of its labels.
    others: columns that rows are told apart by.  bare: there may be no labels.  measured: a split that is enough where
    there is no train split.  vectors: makes what passages of a pool are compared by where the recipe asks for
    vectors."""
    d = recipe.data
    if d is None:
        raise UserError(f"recipe {recipe.name} names no data", where="data", do="add --data")
    named = {
        "train": d.train_split,
        "validation": d.validation_split,
        "test": d.test_split,
        "unlabelled": d.unlabelled_split,
    }
    compared = groups.columns_of([recipe.evaluation.group_column or groups.LABEL])
    return open_table(
        d.source,
        task=d.task,
        text_column=d.text_column,
        text_pair_column=d.text_pair_column,
        label_column=d.label_column,
        splits={split: name for split, name in named.items() if name is not None} or None,
        labels=d.labels,
        expect_labels=(model.label_names or None) if model else None,
        expect_head=head_of(model.heads["task"]) if model and "task" in model.heads else None,
        bad_tags=d.bad_tags,
        bad_rows=d.bad_rows,
        limit=d.limit,
        labelled_rows=d.labelled_rows,
        unlabelled=d.unlabelled,
        pool=None if d.pool is None else _request_pool(d.pool, d.pool_rows, d.pool_by == "vectors", vectors),
        teacher=None
        if d.teacher_columns is None
        else TeacherColumns(tuple(d.teacher_columns), d.teacher_values or "auto", d.teacher_noise or 0.0),
        settings={**_settings_of(model), **get_requested_settings(recipe)},
        others={**dict.fromkeys(others, "--slice"), **dict.fromkeys(compared, "group column")},
        bare=bare,
        measured=measured,
    )


def _request_pool(
    name: str, rows: int | None, by_vectors: bool, vectors: Callable[[], TextVectors] | None
) -> PoolRequest:
    if by_vectors and vectors is None:
        raise UserError(
            "there is no model whose vectors could be compared", where="--pool-by vectors", do="use --pool-by words"
        )
    return PoolRequest(name, rows, vectors if by_vectors else None)


def _settings_of(model: FolderInfo | None) -> dict[str, Any]:
    """The metric that a model was made by goes on deciding, unless a person chooses another; of a kind where it depends
    on the rows, the other settings: by them texts are read, and scores written."""
    if model is None:
        return {}
    head = model.heads.get("task")
    bound = head is not None and find_bound(head_of(head)) is not None
    return {k: v for k, v in model.meta.task_settings.items() if (k == METRIC) != bound}


def get_requested_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings of the task that the recipe names; `settings_for` a table those that models are measured with."""
    assert recipe.data is not None
    names = ("stride", "no_answer_threshold", "long_text", "pooling", "metric")
    said = {name: getattr(recipe.data, name) for name in names}
    return {name: value for name, value in said.items() if value is not None}


def settings_for(recipe: Recipe, table: Table) -> dict[str, Any]:
    """In place of the settings that models have of their own: what the recipe names, and one metric for all of them."""
    return {**get_requested_settings(recipe), **get_metric_setting(table)}


def get_metric_setting(table: Table) -> dict[str, Any]:
    """The setting that one metric judges all models on these rows by, whatever theirs is."""
    return {METRIC: table.settings.get(METRIC)}


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
            _warn_of_unknown_tokens(tokenizer, parts[0], parts[1])
        train = join(*parts)
        if train.cut:
            context.say(
                f"{train.cut:,} of {len(train):,} training texts are longer than {length} tokens and were truncated"
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
        taught = sum(int(task.find_unlabelled(rows.labels).sum()) for rows in self.rows[1:])
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


def find_unlabelled_rows(table: Table, context: StageContext) -> Rows:
    """The rows without labels, but for those whose text is in a split that the student is measured on. Raises UserError
    where there are none."""
    rows, data = table.split("unlabelled"), context.recipe.data
    assert data is not None
    return rows if data.allow_overlap else _without_overlap(rows, table, context)


def warn_of_few_rows(count: int, context: StageContext) -> None:
    """Warn where there are fewer unlabelled rows than the recipe asks for."""
    data = context.recipe.data
    if data is not None and data.unlabelled_rows is not None and count < data.unlabelled_rows:
        _log.warning("only %s of the %s unlabelled rows requested are there", f"{count:,}", f"{data.unlabelled_rows:,}")


def draw_unlabelled_rows(rows: Rows, context: StageContext) -> Rows:
    """No more of them than the recipe asks for, drawn at random."""
    data = context.recipe.data
    assert data is not None
    if data.unlabelled_rows is None or data.unlabelled_rows >= len(rows):
        warn_of_few_rows(len(rows), context)
        return rows
    drawn = np.random.default_rng(context.recipe.seed).choice(len(rows), data.unlabelled_rows, replace=False)
    context.say(f"{data.unlabelled_rows:,} of {format_count(len(rows), 'unlabelled row')} are used")
    return rows.take(np.sort(drawn))


def _without_overlap(rows: Rows, table: Table, context: StageContext) -> Rows:
    measured = [table.splits[split] for split in ("validation", "test") if split in table.splits]
    same = texts.find_overlap(rows, measured)
    if not same.any():
        return rows
    found = format_count(int(same.sum()), "unlabelled row")
    if same.all():
        raise UserError(
            "all unlabelled rows are also in the validation or test split", where=table.name,
            do="give other text, or add --allow-overlap",
        )  # fmt: skip
    context.say(f"{found} left out: their text is also in the validation or test split (--allow-overlap keeps them)")
    return rows.take(np.flatnonzero(~same))


FEW_UNKNOWN = 0.005
"""Share of unknown tokens up to which no text looks foreign."""


def _warn_of_unknown_tokens(tokenizer: Tokenizer, labelled: Examples, unlabelled: Examples) -> None:
    """Text in another language or script has more tokens that the vocabulary does not hold."""
    if "unk" not in tokenizer.specials:
        return
    ours, theirs = (_share_of(part.ids, tokenizer.unk_id) for part in (labelled, unlabelled))
    if theirs > max(3 * ours, FEW_UNKNOWN):
        _log.warning(
            "%.1f%% of the tokens of the unlabelled rows are unknown to the tokenizer, %.1f%% of the labelled rows': "
            "is the text in the same language?", 100 * theirs, 100 * ours,
        )  # fmt: skip


def _share_of(ids: np.ndarray, wanted: int) -> float:
    found = sum(int((piece == wanted).sum()) for piece in pieces(ids))
    return found / max(1, len(ids))


def sample_batches(examples: Examples, labelled: int, rows: int, context: StageContext) -> list[Batch]:
    """So many rows of the first `labelled` ones, evenly spaced, on the device of `context`, for ranges."""
    places = torch.linspace(0, labelled - 1, min(rows, labelled)).round().long().unique()
    few = evaluation_batches(examples.take(places.numpy()), SPREAD_TOKENS)
    return [batch.to(context.device) for batch in few]


def task_max_length(recipe: Recipe) -> int:
    """Most pieces of one text of the labelled data."""
    assert recipe.data is not None
    return recipe.data.max_length


# --- models -----------------------------------------------------------------------------------------------------


def load_for_task(
    folder: Path, table: Table, context: StageContext, *, dropout: float | None, new_head: bool
) -> LoadedModel:
    """A model with a task head for the table's labels: its own when it answers the same task and labels, else a new
    one. dropout: of the whole model, None for its own.

    Raises UserError when it has a head for another task or other labels and `new_head` does not say to replace it.
    """
    info = modelfolder.inspect(folder)
    names, task = list(table.label_names), task_of(table.task)
    if task.label_free:
        raise UserError(
            f"a head for {task.kind} is not trained on labels", where=str(folder), do="use distill, which needs none"
        )
    fresh = None
    if new_head or "task" not in stock_heads(info.heads):
        kind, problem = task.head
        outputs = task.count_outputs(names)
        wanted = HeadConfig(kind=kind, labels=outputs, problem=problem)
        fresh = {"task": info.new_head(wanted)}
        if "task" in stock_heads(info.heads):
            context.say(
                f"the model's task head ({_told(info.heads['task'], info.label_names)}) is replaced by a new one"
            )
    elif head_of(info.heads["task"]) != task.head:
        raise UserError(
            "the model's task head and the data are for different tasks",
            where=str(folder),
            why=f"it has {_told(info.heads['task'], info.label_names)}, the data is for {task.kind}",
            do="use --new-head to replace it",
        )
    elif list(info.label_names) != names:
        raise UserError(
            "the model's task head and the data have different labels",
            where=str(folder),
            why=f"{_listed(info.label_names)} versus {_listed(names)}",
            do="use --new-head to replace it",
        )
    keep = set() if fresh else {"task"}
    loaded = modelfolder.load_model(
        folder, keep=keep, new_heads=fresh, dropout=dropout, seed=context.seed, device=context.device
    )
    for note in loaded.notes:
        context.say(note)
    guess = task.first_guess(table.split("train").labels) if fresh else None
    if guess is not None:
        last = [module for module in loaded.model.heads["task"].modules() if isinstance(module, nn.Linear)][-1]
        with torch.no_grad():
            last.bias.copy_(torch.as_tensor(guess, dtype=last.bias.dtype))
    return loaded


def check_same_labels(teacher: LoadedModel, table: Table) -> None:
    """Raise UserError unless the teacher answers the table's task and labels, in their order (3 against 1 would
    broadcast)."""
    check_same_task(teacher.heads["task"], teacher.label_names, table.task, str(teacher.path))
    if list(teacher.label_names) != list(table.label_names):
        raise UserError(
            "teacher and data have different labels",
            where=str(teacher.path),
            why=f"{_listed(teacher.label_names)} versus {_listed(table.label_names)}",
            do="name the data's labels in the teacher's order with --set 'data.labels=[...]'",
        )


def check_same_task(head: HeadConfig, names: Sequence[str], kind: str, where: str) -> None:
    """Raise UserError unless a model's task head is one for tasks of this kind."""
    if head_of(head) != task_of(kind).head:
        raise UserError(
            f"the model does not support the task of the data, {kind}",
            where=where,
            why=f"it has {_told(head, names)}",
            do="use data for the same task as the model, or set the task of the data with --task",
        )


def head_of(head: HeadConfig) -> tuple[str, str]:
    """What decides whether a head is one for a task."""
    return head.kind, head.problem


def _told(head: HeadConfig, names: Sequence[str]) -> str:
    return f"a head for {for_head(head_of(head)).kind} with {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    return printable("[" + ", ".join(names[:6]) + (", …" if len(names) > 6 else "") + f"] ({len(names)})", 200)


# --- what is written about a model ------------------------------------------------------------------------------


def folder_meta(
    context: StageContext,
    parents: Mapping[str, Path],
    table: Table | None,
    corpus: Corpus | None = None,
    notes: Sequence[str] = (),
) -> FolderMeta:
    """Lineage, recipe and data of a stage's result. parents: role (teacher, start) → folder.  notes: for the card."""
    recipe = context.recipe
    if table is not None:
        data = data_note(table)
    elif corpus is not None:
        data = DataNote(name=without_folders(corpus.name), fingerprint=corpus.fingerprint)
    else:
        data = None
    above = [modelfolder.inspect(folder) for folder in parents.values()]
    block = recipe.data if table is not None else recipe.corpus
    generated = block is not None and is_generated(block.source)
    return FolderMeta(
        family=above[0].family if above else "",
        language=next((one.meta.language for one in above if one.meta.language), ("en",) if generated else ()),
        license=next((one.meta.license for one in above if one.meta.license), None),
        task=table.task if table is not None else None,
        label_names=tuple(table.label_names) if table is not None else (),
        task_settings=dict(table.settings) if table is not None else {},
        method=recipe.method or None,
        max_length=task_max_length(recipe) if table is not None else None,
        lineage=tuple(
            Parent(role=role, name=model_name(folder), fingerprint=modelfolder.fingerprint(folder))
            for role, folder in parents.items()
        ),
        recipe=RecipeNote(
            name=recipe.name,
            sha256=recipe.hash(),
            stage=context.folder.name,
            resolved=_for_others(recipe.model_dump(mode="json")),
        ),
        data=data,
        notes=tuple(notes),
    )


def data_note(table: Table) -> DataNote:
    """What a model was made on, without the folders of this machine."""
    rows = {split: len(rows) for split, rows in table.splits.items()}
    return DataNote(name=table.display_name, fingerprint=table.fingerprint, rows=rows)


def _for_others(value: Any) -> Any:
    """A recipe's values without the folders of this machine; the run's own recipe.yaml keeps them."""
    if isinstance(value, str):
        return without_folders(value, parts=2)
    if isinstance(value, dict):
        return {key: _for_others(one) for key, one in value.items()}
    return [_for_others(one) for one in value] if isinstance(value, list) else value


# --- validation while training ----------------------------------------------------------------------------------


def task_validation(
    data: TaskData, table: Table, context: StageContext, parent: Callable[[], Teacher] | None = None
) -> Callable[[nn.Module], dict[str, float]]:
    """The task's main metric, and the loss on the labels, of the student on the validation rows of the data.

    parent: whose outputs rows without labels are scored by, where the task can be.
    """
    examples, rows = data.validation, data.held_out
    assert rows is not None
    batches = _on_device(evaluation_batches(examples, VALIDATION_TOKENS), len(examples.ids), context.device)
    task, names = task_of(table.task, table.settings), table.label_names
    metric = task.choose_metrics(names)[0]
    theirs: list[np.ndarray] = []

    def validate(module: nn.Module) -> dict[str, float]:
        losses, counts, places, outputs, hard = [], [], [], [], HardLabels()
        for batch, output in outputs_of(module, batches, Needs(logits=True), context):
            assert output.logits is not None
            counts.append(hard.count(batch.on_host))
            losses.append(hard(output, None, batch))
            places.append(batch.on_host.row_ids.numpy())
            outputs.append(output.logits)
        found = copy_to_host([*losses, *outputs])
        ours = restore_order(examples, zip(places, found[len(losses) :], strict=True))
        loss = sum(float(mean) * count for mean, count in zip(found, counts, strict=False))
        if task.label_free and parent is not None:
            if not theirs:
                theirs.append(collect_logits(parent(), batches, examples))
            value = task.score_against(ours, theirs[0], names, examples, rows).value(metric)
            return {metric: value if math.isfinite(value) else 0.0, "loss": mean_distance(ours, theirs[0])}
        value = task.score(ours, names, examples, rows).value(metric)
        # A student that gives every row the same answer has no correlation: none, to choose the best weights by.
        return {metric: value if math.isfinite(value) else 0.0, "loss": loss / max(1, sum(counts))}

    return validate


def collect_logits(
    model: Callable[[Batch, Needs], EncoderOutput], batches: Iterable[Batch], examples: Examples
) -> np.ndarray:
    """(N, C) logits of the examples, or (T, C) of their tokens, in their order. batches: of them, on the model's
    device."""
    parts = []
    for batch in batches:
        logits = model(batch, Needs(logits=True)).logits
        assert logits is not None
        parts.append((batch.on_host.row_ids.numpy(), logits))
    return restore_outputs(examples, parts)


def mean_distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """1 minus the mean cosine of two models' vectors (N, D); of vectors of other widths, (N, D) and (N, E), 1 minus the
    share of the nearest neighbours that both models have in common, among some of the texts. (The differences of their
    cosines would not do: training by similarities shifts all of them.)"""
    if ours.shape == theirs.shape:
        return 1.0 - float(cosines(ours, theirs).mean())
    some = spread_places(len(ours), COMPARED_TEXTS)
    neighbours = min(NEIGHBOURS, len(some) - 1)
    if neighbours < 1:
        return 0.0
    return 1.0 - float(neighbour_overlap(ours[some], theirs[some], neighbours=neighbours).mean())


def _on_device(batches: EvaluationBatches, tokens: int, device: str) -> Iterable[Batch]:
    """The batches on the device, where they stay if their tokens are few; else each is made when it is read."""
    if tokens <= KEPT_TOKENS:
        return [batch.to(device) for batch in batches]
    return _BatchesOnDevice(batches, device)


class _BatchesOnDevice:
    """Batches that are made and moved to a device each time they are read."""

    def __init__(self, batches: EvaluationBatches, device: str) -> None:
        self._batches, self._device = batches, device

    def __iter__(self) -> Iterator[Batch]:
        return (batch.to(self._device) for batch in self._batches)


WATCHED: Mapping[str, Literal["max", "min"]] = {"loss": "min"}
"""What of a task's validation keeps a training of automatic length going, beside the main metric."""


def task_choice(table: Table) -> tuple[str, Literal["max", "min"]]:
    """What the best weights are chosen by."""
    return task_of(table.task, table.settings).choose_metrics(table.label_names)[0], "max"


def outputs_of(
    module: nn.Module, batches: Iterable[Batch], needs: Needs, context: StageContext
) -> Iterator[tuple[Batch, EncoderOutput]]:
    """What the student of a stage computes, batch by batch, in the precision of the training."""
    student = module.student
    assert isinstance(student, Model)
    with autocast(context.precision, torch.device(context.device)):
        for batch in batches:
            yield batch, student(batch, needs)
