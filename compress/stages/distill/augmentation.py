"""Data augmentation by word replacement (TinyBERT, Jiao et al., 1909.10351)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from compress.data.tables.table import Rows, Table
from compress.data.tasks import task_of
from compress.data.text.rewording import KEPT, Passage, copies, mix_spans, passages
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.infer.prepare import prepare
from compress.errors import UserError, format_count
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import load_model
from compress.modelfolder.resolve import resolve
from compress.stages.distill.augmentation_spec import AugmentationSpec
from compress.stages.distill.candidates import Neighbours, Predictions, Words, load_or_predict
from compress.stages.distill.spec import Spec
from compress.stages.shared.labelled_data import task_max_length
from compress.stages.shared.stage import StageContext

WHERE = "augmentation.model"
MOST_LABELLED = 5000
"""Training rows up to which `auto` adds copies: with more of them, they were not measured."""


class NoCopyError(UserError):
    """Every copy would be like its text."""


def settle_augmentation(spec: Spec, table: Table | None, context: StageContext) -> Spec:
    """The stage with `method: auto` and `none` as what they come to on this table. None: it is not known yet, and there
    are no copies."""
    asked = spec.augmentation
    if asked is None or asked.method not in ("auto", "none"):
        return spec
    adds = asked.method == "auto" and table is not None and _gains_from_copies(spec, table, context)
    return spec.model_copy(update={"augmentation": asked.model_copy(update={"method": "mix"}) if adds else None})


def _gains_from_copies(spec: Spec, table: Table, context: StageContext) -> bool:
    """Whether few rows are all there is. Where a person counts epochs or asks for no text, nothing is added."""
    rows, data = table.split("train"), context.recipe.data
    task = task_of(table.task)
    if task.ranks or task.label_free or any(role in KEPT for role in rows.columns):
        return False
    if "unlabelled" in table.splits or (data is not None and data.unlabelled_rows == 0):
        return False
    by_teacher = rows.taught is None and spec.asks_teacher() and not context.recipe.has_column_teacher
    return by_teacher and spec.training.epochs is None and 1 < len(rows) <= MOST_LABELLED


def model_folder(spec: AugmentationSpec, teacher: Path | None, general: Path | None) -> Path | None:
    """Whose words replace others; None where no model is needed. Raises UserError when a masked-LM head is needed and
    it has none."""
    if spec.method == "mix":
        return None
    if spec.model is not None:
        folder = resolve(spec.model)
    else:
        folder = teacher if spec.method == "neighbours" else general or teacher
    if folder is None:
        raise UserError("data augmentation needs a model that proposes words", where=WHERE, do="name one")
    if spec.method == "masked-lm" and "mlm" not in modelfolder.inspect(folder).heads:
        raise no_masked_lm(str(folder))
    return folder


def no_masked_lm(name: str) -> UserError:
    """The same words before any folder is there."""
    return UserError(
        "words are replaced by predictions of a masked language model, and this model has no masked-LM head",
        where=f"{WHERE}: {name}",
        do="name a pretrained encoder as augmentation.model, give this one such a head with compress pretrain, or set "
        "augmentation.method to neighbours",
    )


def augment_rows(
    spec: AugmentationSpec, table: Table, context: StageContext, folder: Path | None, *, seed: int | None = None
) -> Rows:
    """Copies of the table's training rows, labelled as the spec says; told in a line.

    folder: of the model that gives the words.  seed: of the draws; None: the run's. Raises NoCopyError when no word of
    these texts can be replaced, Stopped when a signal asked for it.
    """
    rows = table.split("train")
    how = {"count": spec.copies, "rate": spec.rate, "seed": context.seed if seed is None else seed}
    if folder is None:
        made = mix_spans(rows, **how)
    else:
        found = list(passages(rows))
        made = copies(rows, _candidates(spec, context, folder, found), **how)
    if not len(made.source):
        raise NoCopyError(
            "no copy differs from its text",
            where="augmentation",
            why=f"{made.replaced:,} of {made.words:,} words were selected",
            do="raise copies and rate, or remove the augmentation",
        )
    share, by = made.replaced / max(1, made.words), spec.method if folder is None else f"{spec.method}, {folder.name}"
    context.say(
        f"augmentation: {len(made.source):,} copies of {format_count(len(rows), 'text')}, {share:.0%} of the "
        f"replaceable words replaced ({by})"
    )
    if spec.keep_labels:
        return made.rows(rows, rows.labels[made.source])
    names = list(table.label_names)
    return made.rows(
        rows, task_of(table.task, table.settings).make_missing_labels(made.columns, len(made.source), names)
    )


def _candidates(
    spec: AugmentationSpec, context: StageContext, folder: Path, found: Sequence[Passage]
) -> Iterator[Sequence[Sequence[str]]]:
    """For each passage the candidates of each of its words."""
    masked = spec.method == "masked-lm"
    loaded = load_model(folder, keep={"mlm"} if masked else (), device=context.device)
    tokenizer = Tokenizer.from_files(loaded.tokenizer_files, where=str(folder))
    tokenizer.check_fits(loaded.config.vocabulary, where=str(folder))
    words = Words(tokenizer)
    near = Neighbours(loaded.model, words, spec.candidates)
    if not masked:
        near.of([word for p in found for word in p.words()])  # all at once, each word once
        for p in found:
            yield [words.tell(ids.tolist()) for ids in near.of(p.words())]
        return
    length = min(task_max_length(context.recipe), loaded.config.max_positions)
    model = prepare(loaded.model, context.precision)
    predictions = Predictions(model, words, near, spec.candidates, length, context.device)
    mark = [modelfolder.fingerprint(folder), spec.candidates, length, context.precision, context.device]
    with context.workshop.progress(f"{context.folder.name}: words expected", len(found), "texts") as progress:
        how = {"update": progress.update, "stop": context.workshop.stop, "say": context.say}
        rows = iter(load_or_predict(found, predictions, mark, **how).tolist())
    for p in found:
        yield [words.tell(ids) for ids in islice(rows, len(p.places))]
