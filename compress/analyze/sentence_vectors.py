"""Vectors of whole texts: how even they are, and how well they tell likeness, as they are and post-processed; and the
model saved as an embedder that does the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from compress.analyze.subject import Analysis
from compress.contracts import Watch, unwatched
from compress.data.tables.table import Rows, Table, spread_places
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import Parent
from compress.modelfolder.names import model_label
from compress.modelfolder.sentence_files import prompt_files
from compress.modelfolder.sentence_pooling import part_files
from compress.predict.embedder import Embedder, dense_of
from evaluation.quality.correlation import bootstrap_correlation, spearman_of_draws
from evaluation.quality.intervals import Interval
from evaluation.representation.anisotropy import PostProcessing, anisotropy, fit_removal, fit_whitening
from evaluation.representation.hsic import UndefinedError

Method = Literal["whitening", "remove-top", "none"]
SAMPLE = 1500  # texts whose pairs are compared
REMOVED = 3  # top components
MOST = 5000  # texts that a post-processing is fitted on, more where more are asked for


@dataclass(frozen=True)
class VectorOptions:
    """What becomes of a text's vector. size: directions that whitening keeps, components that are removed; None: all,
    and REMOVED.  folder: where the embedder is written; None: it is only measured."""

    method: Method = "whitening"
    size: int | None = None
    folder: Path | None = None

    @property
    def description(self) -> str:
        """In words."""
        if self.method == "none":
            return "as they are"
        if self.method == "whitening":
            return "whitened" + (f" to {self.size}" if self.size else "")
        return f"without the top {self.size or REMOVED}"

    def fit(self, pooled: torch.Tensor) -> PostProcessing | None:
        """On pooled vectors of texts (N, D). Raises UndefinedError where these are too few or too alike."""
        if self.method == "none":
            return None
        if self.method == "whitening":
            return fit_whitening(pooled, self.size)
        return fit_removal(pooled, self.size or REMOVED)


def report_sentence_vectors(
    embedder: Embedder, table: Table, rows: int, wanted: VectorOptions, found: Analysis, watch: Watch = unwatched
) -> PostProcessing | None:
    """Tell how even the vectors of a table's texts are and, of pairs with scores, how their cosines follow these.

    Fitted on training texts, `rows` of them or, for a folder, MOST; cosines are compared on the other splits. Gives the
    post-processing that is wanted. Raises UserError where the texts are too few or too alike for it.
    """
    texts = texts_of(table.split("train"), rows if wanted.folder is None else max(rows, MOST))
    with watch("sentence embeddings", len(texts), "texts") as progress:
        vectors = embedder.vectors(texts, progress.update)
    ways = [
        way
        for way in (VectorOptions("none"), VectorOptions("whitening"), VectorOptions("remove-top"))
        if way.description != wanted.description
    ]
    ways.insert(0 if wanted.method == "none" else 1, wanted)
    scored = [split for split in ("validation", "test") if _scored(table) and split in table.splits]
    pairs = {split: _pairs(embedder, table.split(split)) for split in scored}
    lines, kept = [], None
    for way in ways:
        try:
            evening = way.fit(vectors)
        except UndefinedError as error:
            if way is wanted and wanted.folder is not None:
                raise UserError(str(error), where="--data", do="use more text, or fewer dimensions") from None
            found.lines.append(f"sentence embeddings, {way.description}: {error}")
            continue
        kept = evening if way is wanted else kept
        x = vectors.double() if evening is None else evening(vectors)
        here = anisotropy(x[:SAMPLE])
        cells = [way.description, str(x.shape[1]), f"{here.cosine:.3f}", f"{here.shares[1]:.3f}"]
        for split, (one, other, gold) in pairs.items():
            ends = (one, other) if evening is None else (evening(one), evening(other))
            figure = _follows(*ends, gold)
            cells.append(f"{100 * figure.value:.2f} [{100 * figure.low:.2f}, {100 * figure.high:.2f}]")
            found.values[f"sentences/{way.description.replace(' ', '_')}_{split}_spearman"] = figure.value
        lines.append(tuple(cells))
    columns = ("sentence embeddings", "width", "mean |cosine|", "variance in top 1")
    columns += tuple(f"Spearman x 100, {split}" for split in scored)
    title = f"sentence embeddings, {embedder.parts.pooling} of the tokens; fitted on {len(vectors):,} training texts"
    found.tables["sentences"] = (title, (columns, lines))
    return kept


def save(embedder: Embedder, evening: PostProcessing | None, wanted: VectorOptions, table: Table) -> Path:
    """Write the model as an embedder with this post-processing; a folder that sentence-transformers loads too.

    What the folder did to its vectors before, it still does first. Raises UserError where the new folder exists.
    """
    assert wanted.folder is not None
    loaded = modelfolder.load_model(embedder.folder, keep=())
    parent = Parent(
        role="base", name=model_label(embedder.folder), fingerprint=modelfolder.fingerprint(embedder.folder)
    )
    parts, hidden = replace(embedder.parts, max_length=embedder.max_length), loaded.config.hidden
    if evening is not None:  # of the vectors as they are cut, so the new ones are not
        more = dense_of(evening, parts.whole_width(hidden))
        parts = replace(parts, denses=(*parts.denses, more), truncate=None)
    note = f"sentence embeddings of width {parts.width(hidden)}: {parts.pooling} of the last hidden states"
    note += "" if evening is None else f", {wanted.description}, fitted on training texts of {table.display_name}"
    meta = loaded.meta.model_copy(update={"lineage": (parent,), "notes": (*loaded.meta.notes, note)})
    return modelfolder.save_model(
        wanted.folder,
        loaded.model,
        tokenizer_files=loaded.tokenizer_files,
        meta=meta,
        beside=part_files(parts, hidden) | prompt_files(embedder.folder, cut=evening is None),
    )


def texts_of(rows: Rows, count: int) -> list[str]:
    """About `count` texts of a split, from evenly spread rows; of pairs both."""
    wide = max(1, len(rows.columns))
    places = spread_places(len(rows), -(-count // wide))
    return [text for part in rows.take(places).contents() for row in part for text in row]


def _scored(table: Table) -> bool:
    return table.task == "regression" and "text_pair" in table.split("train").columns


def _pairs(embedder: Embedder, rows: Rows) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """(first texts, second texts) as vectors (N, D) and scores (N,) of the rows that have one."""
    gold = np.asarray(rows.labels, dtype=np.float64).reshape(-1)
    known = rows.take(np.flatnonzero(np.isfinite(gold)))
    return embedder.vectors(known.texts), embedder.vectors(known.pairs or []), gold[np.isfinite(gold)]


def _follows(one: torch.Tensor, other: torch.Tensor, gold: np.ndarray) -> Interval:
    """Spearman of cosines and scores (N,), with its interval over rows."""
    cosines = torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=1).numpy()
    return bootstrap_correlation(spearman_of_draws, gold, cosines)
