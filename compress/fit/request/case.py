"""What is fitted: the model, its labelled data, and how both are read."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from compress.cascade.request import require_one_label, require_own_rows, require_whole_texts
from compress.console import Console
from compress.contracts import RunOptions
from compress.data.tables.table import Table
from compress.data.task import METRIC, Task
from compress.data.tasks import find_label_free, task_of
from compress.data.tasks.embedding import OVERLAP, form_of
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.unsupported import (
    refuse_dropped_tokens,
    refuse_global_projections,
    refuse_low_rank,
    refuse_quantized,
    refuse_sparse,
    refuse_static,
)
from compress.errors import UserError
from compress.fit.request.bounds import Bounds
from compress.fit.request.clock import Clock
from compress.fit.request.options import FitOptions
from compress.fit.request.unlabelled import label_with_parent
from compress.measure.labelled import open_labelled
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import LoadedModel
from compress.modelfolder.resolve import resolve
from compress.predict.real_texts import TextCalls, sample_texts
from compress.recipe import Recipe
from compress.stages.shared.divergence import OF_CLASSES, OF_SCORES, OF_VECTORS, name_distance
from compress.stages.shared.labelled_data import get_requested_settings
from compress.stages.shared.task_head import check_same_labels, head_of
from compress.stages.shared.timing import choose_length


class LossWords(NamedTuple):
    """What the plans' losses are called: name, head of a column, and what follows a number."""

    name: str
    column: str
    unit: str


LOSS_WORDS = {
    OF_CLASSES: LossWords("KL", "KL to parent, nats", "nats"),
    OF_SCORES: LossWords("squared difference", "squared difference to parent", "of squared difference"),
    OF_VECTORS: LossWords("1 - cosine", "1 - cosine to parent", "of 1 - cosine"),
}


@dataclass(frozen=True)
class Case:
    """A model and its data. source: the model's folder.  labelled: False where the labels are the model's own answers.
    metric: the main metric of the task.  max_length: tokens of a text at most.  texts: what latency is measured on;
    None: sequences of `length` tokens."""

    wanted: FitOptions
    options: RunOptions
    console: Console
    clock: Clock
    source: Path
    loaded: LoadedModel
    recipe: Recipe
    table: Table
    labelled: bool
    task: Task
    metric: str
    max_length: int
    length: int
    texts: TextCalls | None = None

    @classmethod
    def of(cls, wanted: FitOptions, options: RunOptions, console: Console, clock: Clock) -> Case:
        """Open both. Raises UserError for a model that cannot be fitted, and for data that do not fit it."""
        source = resolve(wanted.model, options.tracking_uri)
        info = modelfolder.inspect(source)
        if "task" not in info.heads:
            raise UserError("the model has no task head", where=str(source), do="fine-tune it first: compress finetune")
        embeds = find_label_free(head_of(info.heads["task"])) is not None
        ranks = info.heads["task"].problem == "ranking"
        if wanted.cascade:
            require_one_label(info.heads["task"], str(source))
        require_fittable(info.config, source)
        recipe, table = open_labelled(info, options, console, bare=True)
        if wanted.train == "none" and recipe.data is not None and recipe.data.adds_text:
            do = "add --train recover, or remove --unlabelled"
            raise UserError("has no effect without --train: nothing is trained", where="--unlabelled", do=do)
        assert recipe.data is not None
        max_length = min(recipe.data.max_length, info.config.max_positions)
        labelled = "label" in table.columns or ranks
        if embeds:
            labelled = form_of(table.split("test")) != "texts"
            if not labelled and get_requested_settings(recipe).get(METRIC) is None:
                table = dataclasses.replace(table, settings={**table.settings, METRIC: OVERLAP})
                console.note("the data has no labels: the metric is the share of nearest neighbours that stay the same")
        elif not labelled:
            if wanted.train != "none":
                where = f"--train {wanted.train}"
                raise UserError("the data has no labels to train with", where=where, do="use labelled data")
            table = label_with_parent(
                table, source, max_length, device=options.device, settings=get_requested_settings(recipe)
            )
            console.note("the data has no labels: the metric is the agreement with the parent's predictions")
        if wanted.cascade:
            assert wanted.bounds.max_drop is not None
            require_whole_texts(info.meta, get_requested_settings(recipe), source)
            require_own_rows(table, wanted.bounds.max_drop)
        loaded = modelfolder.load_model(source, require={"task"}, keep={"task"}, device=options.device)
        check_same_labels(loaded, table)
        task = task_of(table.task, table.settings)
        metric = task.choose_metrics(table.label_names)[0]
        wanted.bounds.check_rows(len(table.split("test")), metric, wanted.uncertified)
        length = choose_length([(wanted.model, info.config.max_positions)], wanted.length)
        texts = None if wanted.length is not None else _open_texts(loaded, table, task, max_length, wanted, options)
        return cls(
            wanted, options, console, clock, source, loaded, recipe, table, labelled, task, metric, max_length, length,
            texts,
        )  # fmt: skip

    def with_fixed_length(self) -> Case:
        """Timed on sequences of one length, as fits of version 0.1 are that were begun without --length."""
        return dataclasses.replace(self, texts=None)

    @property
    def shape(self) -> dict[str, Any]:
        """What latency is of and where, as keys of `Serving`."""
        return {
            "batch": self.wanted.batch, "length": self.length, "device": self.options.device, "texts": self.texts,
        }  # fmt: skip

    @property
    def loss_words(self) -> LossWords:
        return LOSS_WORDS[name_distance(self.loaded.model)]

    @property
    def bounds(self) -> Bounds:
        """What the result must meet."""
        return self.wanted.bounds


def require_fittable(config: EncoderConfig, source: Path) -> None:
    """Raises UserError for a model whose layers cannot be cut and quantized, such as one that is quantized already."""
    where = str(source)
    refuse_static(config, "fit", where)
    for refuse in (refuse_quantized, refuse_low_rank, refuse_global_projections, refuse_sparse, refuse_dropped_tokens):
        refuse(config, "fitting it", where)


def _open_texts(
    loaded: LoadedModel, table: Table, task: Task, max_length: int, wanted: FitOptions, options: RunOptions
) -> TextCalls:
    """Test rows as the model reads them: only their lengths count, and figures of other commands are of the same rows.
    Raises UserError where there is no text, and for milliseconds that tokenization alone takes."""
    sample = sample_texts(
        table.split("test"), data=f"{table.display_name}/test", digest=table.measured_fingerprint,
        max_length=max_length, batch=wanted.batch,
    )  # fmt: skip
    tokenizer = Tokenizer.from_files(loaded.tokenizer_files, where=str(loaded.path))
    texts = TextCalls(sample, task, tokenizer, loaded.config.max_positions, options.device)
    if wanted.bounds.max_ms is not None:
        wanted.bounds.check_tokenization(texts.measure_tokenization())
    return texts
