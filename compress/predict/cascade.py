"""A cascade that answers: every row goes to the first model, and what that is not sure of to the next one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from compress.contracts import Batch
from compress.data.batches.evaluation_batches import EvaluationBatches
from compress.data.batches.examples import Examples, TextSource
from compress.data.tables.table import Rows
from compress.data.task import Task
from compress.data.tasks import classification
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder import cascade as cascades
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.meta import is_cascade
from compress.onnx import model_file
from compress.onnx.model_file import find_file_runtime
from compress.onnx.runtimes import IN_TORCH, Runtime
from compress.predict.predictor import Predictor
from compress.predict.route import CascadeModel, Route
from compress.training.precision import Precision


def open_predictor(folder: Path, **how: Any) -> Predictor:
    """What answers with a model folder of either kind. how: as of `Predictor`."""
    return CascadePredictor(folder, **how) if is_cascade(folder) else Predictor(folder, **how)


def choose_stage_runtime(folder: Path, device: str, requested: Runtime | None = None) -> Runtime | None:
    """What computes a model of a cascade: the requested runtime, but torch where this is integers and the model is
    float. Without a request the runtime of its exported file if it has one; None: as of `Predictor`."""
    if requested == "torch-int8" and not is_quantized(folder):
        return "torch"
    return requested or (find_file_runtime(folder) if device == "cpu" else None)


def is_quantized(folder: Path) -> bool:
    """Whether a model has integers that `torch-int8` computes with."""
    return modelfolder.inspect(folder).config.quantization is not None


def refuse_chunks(folder: Path) -> NoReturn:
    """Raise UserError for a model whose long texts are read in chunks."""
    raise UserError(
        "cascades and early exits do not read long texts in chunks", where=str(folder), do="set --long-text cut"
    )


class CascadePredictor(Predictor):
    """Answers with a cascade. Its interface is that of one model; logits are divided by the temperatures of the models
    that computed them, so that probabilities are calibrated.

    runtime: of all models (`choose_stage_runtime`).
    Raises UserError as `Predictor` does, for models with other labels, and for texts that are read in chunks.
    """

    def __init__(
        self, folder: Path, *, device: str = "cpu", precision: Precision = "auto", task: str | None = None,
        settings: Any = None, runtime: Runtime | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.device = Path(folder), device
        self.cascade = cascades.read(self.folder)
        self.meta = self.cascade.meta
        self._check_runtime(runtime)
        how: dict[str, Any] = {"device": device, "precision": precision, "task": task or self.meta.task}
        self.models = [
            Predictor(place, runtime=choose_stage_runtime(place, device, runtime), **how)
            for place in self.cascade.folders
        ]
        for model in self.models:
            cascades.require_labels(self.cascade, model.folder, model.label_names)
            model.answer_in_order_of(self.meta.label_names)
        first, last = self.models[0], self.models[-1]
        self.runtime, self.precision, self.config, self.head = last.runtime, last.precision, last.config, last.head
        self.tokenizer = first.tokenizer
        self._named = task or self.meta.task
        self._settings = {**self.meta.task_settings, **(settings or {})}
        self.task = self.task_for(paired=False)
        if isinstance(self.task, classification.Task) and self.task.chunked:
            refuse_chunks(self.folder)
        self.max_length = min(model.max_length for model in self.models)
        shared = [m.tokenizer.fingerprint == first.tokenizer.fingerprint for m in self.models]
        tokenizers = [None if same else m.tokenizer for same, m in zip(shared, self.models, strict=True)]
        self.route = Route(self.cascade.stages, tokenizers)
        self.model = CascadeModel(self.route, [m.reference for m in self.models])
        self._order = None
        self.answered = np.zeros(len(self.models), dtype=np.int64)
        """(models,) rows that each model answered since `logits` was last called."""

    def _check_runtime(self, runtime: Runtime | None) -> None:
        """Raise UserError for a runtime that is not for every model, torch-int8 for none."""
        if runtime is None:
            return
        if runtime == "torch-int8" and not any(is_quantized(place) for place in self.cascade.folders):
            raise UserError(
                "no model of this cascade is quantized", where=f"--runtime {runtime}", do="remove --runtime"
            )
        bare = next((place for place in self.cascade.folders if not (place / model_file.RECORD).is_file()), None)
        if runtime not in IN_TORCH and bare is not None:
            raise UserError(
                f"no {model_file.FILE}", where=str(bare),
                do="export the models first (compress export), then join them again: compress cascade",
            )  # fmt: skip

    def with_runtime(self, runtime: Runtime) -> CascadePredictor:
        """All models in another runtime."""
        other = copy.copy(self)
        chosen: list[Runtime] = [
            choose_stage_runtime(model.folder, self.device, runtime) or runtime for model in self.models
        ]
        other.models = [model.with_runtime(one) for model, one in zip(self.models, chosen, strict=True)]
        other.runtime = runtime
        return other

    def reopen(self) -> CascadePredictor:
        """As of a single model, for each."""
        other = copy.copy(self)
        other.models = [model.reopen() for model in self.models]
        return other

    def answer(self, batch: Batch) -> tuple[torch.Tensor, np.ndarray]:
        """((B, C) fp32 logits on the CPU; (B,) the place of the model that answered each row)."""
        logits, places = self.route.follow(batch, self.models)
        return (logits if self._order is None else logits[:, self._order]), places

    def __call__(self, batch: Batch) -> torch.Tensor:
        """(B, C) logits of one packed batch, fp32."""
        logits, places = self.answer(batch)
        self.answered += np.bincount(places, minlength=len(self.models))
        return logits

    @property
    def max_tokens(self) -> int:
        """That of the model that takes the fewest."""
        return min(model.max_tokens for model in self.models)

    def batches(self, examples: Examples, max_tokens: int | None = None) -> EvaluationBatches:
        """As a single model's, for the first model whose runtime pads; torch takes such batches as well."""
        padding = [model for model in self.models if model.runtime not in IN_TORCH]
        return (padding or self.models)[0].batches(examples, max_tokens or self.max_tokens)

    def logits(
        self, examples: Examples, *, max_tokens: int | None = None, told: Callable[[int], None] = lambda _: None
    ) -> np.ndarray:
        """As of a single model; `answered` is then of these examples."""
        self.answered = np.zeros(len(self.models), dtype=np.int64)
        return super().logits(examples, max_tokens=max_tokens, told=told)

    def encode_texts(
        self, task: Task, texts: Sequence[str], pairs: Sequence[str] | None, *, max_length: int
    ) -> Examples:
        """Raw texts, encoded for the first model, and kept for the others where these have tokenizers of their own."""

        def encode(tokenizer: Tokenizer, places: np.ndarray) -> Examples:
            chosen: list[int] = places.tolist()
            second = None if pairs is None else [pairs[i] for i in chosen]
            return task.encode_texts(tokenizer, [texts[i] for i in chosen], second, max_length=max_length)

        return self._with_source(encode(self.tokenizer_for(len(texts)), np.arange(len(texts))), encode)

    def keep_texts(self, examples: Examples, rows: Rows, max_length: int) -> Examples:
        """The same, of rows of a table."""
        return self._with_source(
            examples, lambda tokenizer, places: self.task.encode(tokenizer, rows.take(places), max_length=max_length)
        )

    def _with_source(self, examples: Examples, encode: Callable[[Tokenizer, np.ndarray], Examples]) -> Examples:
        if all(tokenizer is None for tokenizer in self.route.tokenizers):
            return examples
        return replace(examples, texts=TextSource(encode, np.arange(len(examples))))

    def list_models_of_first_tokenizer(self) -> list[Predictor]:
        """Those that read the same tokens as the first one."""
        return [m for m, other in zip(self.models, self.route.tokenizers, strict=True) if other is None]

    @property
    def computed_by(self) -> str:
        """The runtimes of the models."""
        return f"cascade of {len(self.models)}: " + "; ".join(dict.fromkeys(m.computed_by for m in self.models))

    @property
    def computed_in(self) -> str:
        """The precisions of the models."""
        return ", ".join(dict.fromkeys(m.computed_in for m in self.models))

    @property
    def simulates_integers(self) -> bool:
        """Whether any model is quantized and computed in floats all the same."""
        return any(model.simulates_integers for model in self.models)

    @property
    def reference(self) -> Model:
        """Raises UserError: there is no single network."""
        raise UserError(
            "a cascade is several networks", where=str(self.folder), do=f"load one: {self.cascade.folders[0]}"
        )

    @property
    def files(self) -> list[Path]:
        """Those of all models."""
        return [file for model in self.models for file in model.files]
