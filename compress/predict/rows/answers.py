"""Lines of answers: a model folder, opened once, that is given rows and writes a line for each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from compress.console import Console
from compress.data.tasks import embedding
from compress.errors import UserError, printable
from compress.modelfolder.cascade import inspect
from compress.onnx.runtimes import Runtime
from compress.predict.cascade import CascadePredictor
from compress.predict.embedder import Embedder
from compress.predict.fastest import open_in_runtime
from compress.predict.predictor import Predictor
from compress.predict.rows.inputs import EMBEDDED, PredictionInput, TextColumns, join_answer
from compress.predict.service import collect_pairs
from compress.storage.sent import find_copy
from compress.training.precision import Precision

Told = Callable[[int], None]
"""Is told how many rows of a window are done."""


class Answerer(Protocol):
    """What writes lines. columns: of the rows that it reads.  label: of its progress.  gives_vectors: whether its
    answers are vectors."""

    columns: TextColumns
    label: str
    gives_vectors: bool

    def lines(self, rows: Sequence[PredictionInput], told: Told, *, as_json: bool) -> Iterator[str]:
        """A line for each row, in their order."""
        ...


class PredictionAnswerer:
    """The predictions of a model, which of an embedding model are vectors. embeddings: whether only these are asked
    for."""

    def __init__(self, predictor: Predictor, *, embeddings: bool = False) -> None:
        self.predictor = predictor
        self.gives_vectors = predictor.task.kind == embedding.Task.kind
        self.columns = EMBEDDED if embeddings else TextColumns.of_task(predictor.task)
        self.label = "embed" if embeddings else "predict"

    def lines(self, rows: Sequence[PredictionInput], told: Told, *, as_json: bool) -> Iterator[str]:
        """As `Answerer`."""
        second = collect_pairs([one.pair for one in rows])
        answers = self.predictor.predict([one.text for one in rows], second, told=told)
        first, pair = self.predictor.task.asked_as
        for one, answer in zip(rows, answers, strict=True):
            repeated = {} if pair is None or one.pair is None else {pair: one.pair}
            if as_json:
                row = join_answer(one.beside, {first: one.text, **repeated, **answer.as_json()})
                yield json.dumps(row, ensure_ascii=False)
            else:
                yield "\t".join([answer.line(one.text), *(printable(text, 200) for text in repeated.values())])


class VectorAnswerer:
    """The vectors of texts by a model for another task."""

    label, gives_vectors = "embed", True

    def __init__(self, embedder: Embedder) -> None:
        self.embedder, self.columns = embedder, EMBEDDED

    def lines(self, rows: Sequence[PredictionInput], told: Told, *, as_json: bool) -> Iterator[str]:
        """As `Answerer`."""
        for one, vector in zip(rows, self.embedder([one.text for one in rows], told), strict=True):
            if as_json:
                found = [float(f"{value:.7g}") for value in vector]
                row = join_answer(one.beside, {"text": one.text, "embedding": found})
                yield json.dumps(row, ensure_ascii=False)
            else:
                yield " ".join(f"{value:.6g}" for value in vector) + "\t" + printable(one.text, 200)


@dataclass(frozen=True)
class ModelRequest:
    """Which model answers, and how. settings: of the task, in place of the model's own.  runtime: None: as the folder
    is meant to be run.  text_column, text_pair_column: of files of rows; None: by their usual names.  prompt: the name
    of the one before each text of an embedding model; None: the folder's default one.  kept: columns of the rows that
    the answers repeat, each under a name."""

    folder: Path
    device: str = "cpu"
    precision: Precision = "auto"
    runtime: Runtime | Literal["auto"] | None = None
    embeddings: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    text_column: str | None = None
    text_pair_column: str | None = None
    prompt: str | None = None
    kept: Mapping[str, str] = field(default_factory=dict)

    def open(self, console: Console) -> Answerer:
        """Load the model; with `--runtime auto`, its fastest runtime. Raises UserError as what answers does, and for
        the column of a second text where the model reads one."""
        answerer = self._open(console)
        answerer.columns = answerer.columns.renamed(self.text_column, self.text_pair_column).keep(self.kept)
        return answerer

    def _open(self, console: Console) -> Answerer:
        if self.embeddings and not inspect(self.folder).is_embedder:
            # before the runtime is looked at: it says what is wrong with the folder
            embedder = Embedder(self.folder, device=self.device, precision=self.precision)
            if self.runtime not in (None, "torch"):
                raise UserError(
                    "only the vectors of embedding models are computed in other runtimes than torch",
                    where=f"--runtime {self.runtime}", do="remove it",
                )  # fmt: skip
            return VectorAnswerer(embedder.with_prompt(self.prompt))
        predictor = open_in_runtime(
            self.folder, self.runtime, console, device=self.device, precision=self.precision, settings=self.settings
        )
        return PredictionAnswerer(predictor.with_prompt(self.prompt), embeddings=self.embeddings)

    def settle(self, answerer: Answerer) -> ModelRequest:
        """The same with the runtime that was chosen, so that other processes compute the same."""
        if self.runtime != "auto" or not isinstance(answerer, PredictionAnswerer):
            return self
        cascade = isinstance(answerer.predictor, CascadePredictor)
        return replace(self, runtime=None if cascade else answerer.predictor.runtime)

    def pack(self) -> dict[str, Any]:
        """As plain data. Without columns to keep it is what versions wrote that knew none."""
        packed = asdict(self) | {"folder": str(self.folder), "settings": dict(self.settings)}
        return {name: value for name, value in packed.items() if name != "kept" or value}

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> ModelRequest:
        """What `pack` packed."""
        return cls(**{**packed, "folder": find_copy(Path(packed["folder"]))})
