"""A model folder that answers: the one way that evaluation, benchmarks and `compress predict` run a model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from compress.contracts import Batch, Needs, Teacher
from compress.data.batches.evaluation_batches import (
    EvaluationBatches,
    bucketed_batches,
    evaluation_batches,
    restore_outputs,
)
from compress.data.batches.examples import Examples
from compress.data.tables.label_order import outputs_in_order
from compress.data.tables.table import Rows
from compress.data.task import Task
from compress.data.tasks import for_head, task_of
from compress.data.text.cached_tokenizer import CachedTokenizer
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.infer.compiled import Products, prepare_compiled
from compress.encoder.infer.graphs import prepare_graphed, require_gpu
from compress.encoder.infer.prepare import prepare
from compress.encoder.infer.semi_structured import SparseModel, prepare_sparse, require_device
from compress.encoder.integers.products import prepare_integers, products
from compress.encoder.modules.model import Model
from compress.errors import ExitCode, UserError
from compress.modelfolder.ensemble import Ensemble, EnsembleTeacher, JointModel, members_in_order
from compress.modelfolder.folder import load_model
from compress.modelfolder.sentence_head import EMBEDDING
from compress.modelfolder.sentence_pooling import read_parts
from compress.onnx import model_file
from compress.onnx.gpu_session import computed_in
from compress.onnx.precision import precision_of
from compress.onnx.runtimes import COMPILED, IN_TORCH, PROVIDERS, TORCHAO, Runtime, versions
from compress.predict.file_batches import choose_file_budget, count_call_tokens
from compress.training.memory import choose_token_budget
from compress.training.precision import Precision, Resolved, serving_precision

if TYPE_CHECKING:
    from compress.predict.route import CascadeModel

PRODUCTS: Mapping[Runtime, Products] = {"torch-compile": "float", "torchao-int8": "int8", "torchao-fp8": "fp8"}
IN_FLOATS: frozenset[Runtime] = frozenset({"torch", "torch-graph", "torch-compile"})
MANY = 256  # texts whose words are tokenized once; fewer have few words in common
MAX_TOKENS = 4096  # real tokens per forward pass on a CPU: fills the processor, stays in its caches


class Predictor:
    """Answers with a model folder on this device, computing on real tokens only.

    precision: of weights and matrix products; "auto": the device's (`serving_precision`).  task: its kind; None: as the
    folder says, or, where a folder of another tool says nothing, a kind that its head is for.  settings: of the task,
    in place of the folder's.
    runtime: "torch" computes in floats, which of a quantized folder simulates its integers; "torch-int8" computes with
    them; "torch-sparse" multiplies 2:4 matrices without their zeros, on GPUs that can; "torch-graph" is torch on a GPU
    with CUDA graphs for small batches; "torch-compile" is torch compiled, "torchao-int8" and "torchao-fp8" the same
    with products of eight bits; "onnxruntime" and "openvino" answer with the folder's exported file, which like
    torch-int8 is for the CPU and, in onnxruntime, has its own precision; "onnxruntime-cuda" and "onnxruntime-tensorrt"
    answer with the file on a GPU. None: as the folder is meant to be run, which
    for a quantized one is its file.
    Raises UserError when the folder has no task head.
    """

    def __init__(
        self,
        folder: Path,
        *,
        device: str = "cpu",
        precision: Precision = "auto",
        task: str | None = None,
        settings: Mapping[str, Any] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.folder, self.device = Path(folder), device
        self.runtime: Runtime = runtime or _usual_runtime(self.folder, device)
        self.precision: Resolved = serving_precision(precision, device)
        _check_runtime(self.runtime, device, self.precision)
        loaded = load_model(self.folder, require={"task"}, device=device, exits=True)
        self.meta, self.config = loaded.meta, loaded.config
        self._own = loaded.model.eval()
        self.model: Model | JointModel | CascadeModel = self._own
        self.tokenizer = Tokenizer.from_files(loaded.tokenizer_files, where=str(self.folder))
        self.tokenizer.check_fits(self.config.vocabulary, where=str(self.folder))
        self._named = task or self.meta.task
        self._settings = {**self.meta.task_settings, **(settings or {})}
        self.head = loaded.heads["task"]
        self.task = self.task_for(paired=False)
        self.max_length = self.config.max_positions
        self._order: list[int] | None = None

    def with_runtime(self, runtime: Runtime) -> Predictor:
        """The same model in another runtime; what was loaded is loaded once. Raises UserError as the constructor."""
        _check_runtime(runtime, self.device, self.precision)
        other = copy.copy(self)
        other.__dict__.pop("run", None)
        other.runtime = runtime
        return other

    def with_prompt(self, name: str | None) -> Predictor:
        """The same embedding model with the prompt of this name before each text; None: as it is. Raises UserError
        where the folder has none, and for another model."""
        if name is None:
            return self
        if self.task.kind != EMBEDDING:
            why = f"the task of the model is {self.task.kind}"
            raise UserError("only embedding models read prompts", where=str(self.folder), why=why)
        other = copy.copy(self)
        other._settings = {**self._settings, "prompt": read_parts(self.folder, self.config.hidden, name).prompt}
        other.task = other.task_for(paired=False)
        return other

    def reopen(self) -> Predictor:
        """The same model as if it had not been called: an exported file in a session that has taken no memory yet,
        since sessions keep what they took. In torch, which gives it back, itself."""
        if self.runtime in IN_TORCH and self.runtime != "torch-graph":
            return self
        other = self.with_runtime(self.runtime)
        _ = other.run
        return other

    def answer_in_order_of(self, names: Sequence[str]) -> None:
        """Answer from now on in the order of another model's labels. Raises UserError unless they are the same."""
        order = outputs_in_order(self.label_names, names, where=str(self.folder))
        self._order = None if order == sorted(order) else order
        self.meta = self.meta.model_copy(update={"label_names": tuple(names)})

    @cached_property
    def run(self) -> Teacher:
        """The model prepared for inference, or its exported file; made on first use."""
        if self.runtime not in IN_TORCH:
            return model_file.open_session(self.folder, self.runtime, precision=self.precision)
        return prepare_in_torch(self._own, self.runtime, self.precision)

    @property
    def computed_by(self) -> str:
        """The runtime with its version, and how it is given rows of different lengths: written beside every speed."""
        if self.runtime == "torch":
            return f"torch {torch.__version__}, packed"
        if self.runtime == "torch-graph":
            return f"torch {torch.__version__}, CUDA graphs for small batches, padded; packed"
        if self.runtime == "torch-int8":
            able, total = products(self._own)
            some = "" if able == total else f" in {able} of {total} matrices"
            return f"torch {torch.__version__}, integers{some}, packed"
        if self.runtime == "torch-sparse":
            run = self.run
            assert isinstance(run, SparseModel)
            some = "" if run.able == run.total else f" in {run.able} of {run.total} matrices"
            return f"torch {torch.__version__}, 2:4 sparse products{some}, packed"
        if self.runtime in COMPILED:
            by = f"torchao {metadata.version('torchao')}, " if self.runtime in TORCHAO else ""
            return f"{by}torch {torch.__version__}, compiled, packed"
        return f"{self.runtime} {versions()[self.runtime]}, length buckets"

    @property
    def simulates_integers(self) -> bool:
        """Whether the model is quantized and computed in floats all the same."""
        return self.runtime in IN_FLOATS and self.config.quantization is not None

    @property
    def computed_in(self) -> str:
        """The precision, written beside every speed: of a file, what its record says."""
        if self.runtime in TORCHAO:
            return "int8 per-token" if self.runtime == "torchao-int8" else "fp8 per-token"
        if self.runtime == "torch-sparse":
            return "bf16"
        if self.runtime in PROVIDERS:
            return computed_in(self.runtime, self.precision)
        if self.simulates_integers:
            return "fp32"
        if self.runtime in IN_FLOATS or self.precision != "fp32":
            return self.precision
        if self.runtime == "torch-int8":
            return precision_of(self._own)
        return str(model_file.read_record(self.folder).get("precision", self.precision))

    @property
    def max_tokens(self) -> int:
        """Tokens of one forward pass."""
        if self.runtime in PROVIDERS:  # which holds the products of queries and keys
            return choose_token_budget(self.config, self.device, MAX_TOKENS) // 2
        if self.runtime not in IN_TORCH:
            return choose_file_budget(self.config, self.runtime)
        return choose_token_budget(self.config, self.device, MAX_TOKENS)

    @property
    def reference(self) -> Model:
        """The model as it was loaded, not prepared for any runtime: what a runtime's answers are compared with."""
        return self._own

    def task_for(self, *, paired: bool) -> Task:
        """The task that the model does. paired: it is given two texts, which decides where nothing else does."""
        if self._named is not None:
            return task_of(self._named, self._settings)
        return for_head((self.head.kind, self.head.problem), paired=paired).configure(self._settings)

    @property
    def label_names(self) -> list[str]:
        return list(self.meta.label_names)

    def __call__(self, batch: Batch) -> torch.Tensor:
        """(B, C) logits of one packed batch, fp32; (T, C) of a head that answers every token."""
        there = batch if self.runtime in PROVIDERS else batch.to(self.device)  # which pads before it copies
        logits = self.run(there, Needs(logits=True)).logits
        assert logits is not None
        return logits.float() if self._order is None else logits.float()[:, self._order]

    def batches(self, examples: Examples, max_tokens: int | None = None) -> EvaluationBatches:
        """All rows once, as this runtime answers many of them soonest: any lengths side by side in torch, which
        computes real tokens only; rows of like length for a file, whose runtimes pad.

        No answer depends on the rows beside it: a quantized file rounds each token by its own range, or by fixed ones.
        max_tokens: of a batch; None: the runtime's.
        """
        most = max_tokens or self.max_tokens
        if self.runtime in IN_TORCH:
            return evaluation_batches(examples, most)
        return bucketed_batches(examples, most, count_call_tokens(self.config))

    def logits(
        self, examples: Examples, *, max_tokens: int | None = None, told: Callable[[int], None] = lambda _: None
    ) -> np.ndarray:
        """(rows, C) float32 logits of encoded examples, or (all tokens, C), in their order.

        max_tokens: as of `batches`.  told: of how many examples are done.
        """
        parts, done = [], 0
        for batch in self.batches(examples, max_tokens):
            parts.append((batch.row_ids.numpy(), self(batch)))
            done += batch.rows
            told(done)
        return restore_outputs(examples, parts)

    def encode_rows(self, rows: Rows, *, max_length: int) -> Examples:
        """Labelled rows of a table, encoded for this model."""
        length = min(max_length, self.max_length)
        return self.keep_texts(self.task.encode(self.tokenizer, rows, max_length=length), rows, length)

    def encode_texts(
        self, task: Task, texts: Sequence[str], pairs: Sequence[str] | None, *, max_length: int
    ) -> Examples:
        """Raw texts, or pairs of texts, encoded for this model."""
        return task.encode_texts(self.tokenizer_for(len(texts)), texts, pairs, max_length=max_length)

    def tokenizer_for(self, texts: int) -> Tokenizer:
        """The tokenizer, with its words kept where there are many texts."""
        return self._cached_tokenizer if texts >= MANY else self.tokenizer

    def keep_texts(self, examples: Examples, rows: Rows, max_length: int) -> Examples:
        """Encoded rows, with their texts where another model may have to read them (`CascadePredictor`)."""
        return examples

    def predict(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        told: Callable[[int], None] = lambda _: None,
    ) -> list[Any]:
        """The task's answer to each raw text (or pair of texts). told: of how many texts are done."""
        task = self.task_for(paired=pairs is not None)
        examples = self.encode_texts(task, texts, pairs, max_length=self.limit_length(max_length))
        # A long text is several examples: texts are counted by their share.
        logits = self.logits(examples, told=lambda done: told(done * len(texts) // len(examples)))
        return list(task.decode(logits, self.label_names, examples, texts, pairs))

    def limit_length(self, asked: int | None) -> int:
        """Tokens at most that are read of a text; None: what the model was trained on."""
        return min(asked or self.meta.max_length or self.max_length, self.max_length)

    @cached_property
    def _cached_tokenizer(self) -> CachedTokenizer:
        return CachedTokenizer(self.tokenizer)

    @property
    def files(self) -> list[Path]:
        """What it needs on the disk: folders whose weights it reads, or the exported file."""
        return [self.folder] if self.runtime in IN_TORCH else [self.folder / model_file.FILE]


def prepare_in_torch(model: Model, runtime: Runtime, precision: Resolved) -> Teacher:
    """The model prepared for one of the runtimes `IN_TORCH`."""
    if runtime == "torch-int8":
        return prepare_integers(model)
    if runtime == "torch-sparse":
        return prepare_sparse(model)
    if runtime == "torch-graph":
        return prepare_graphed(model, precision)
    if runtime in COMPILED:
        return prepare_compiled(model, precision, PRODUCTS[runtime])
    return prepare(model, precision)


def build_fixed_batch(config: EncoderConfig, rows: int, length: int) -> Batch:
    """`rows` sequences of `length` random tokens: latency depends on the count of tokens, not on which they are."""
    generator = torch.Generator().manual_seed(0)
    total = rows * length
    return Batch(
        input_ids=torch.randint(0, config.vocabulary, (total,), generator=generator),
        segment_ids=torch.zeros(total, dtype=torch.int64),
        position_ids=torch.arange(length).repeat(rows),
        cu_seqlens=torch.arange(0, total + 1, length),
        max_length=length,
        row_ids=torch.arange(rows),
    )


class EnsemblePredictor(Predictor):
    """Several model folders that answer together. Task, tokenizer and order of the labels are the lead's.

    model: all of them side by side. Costs what all of them cost.
    """

    def __init__(self, ensemble: Ensemble, **how: Any) -> None:
        super().__init__(ensemble.leader.folder, **how)
        self.ensemble, self._orders = ensemble, members_in_order(ensemble)
        self._models = [
            self._own if m is ensemble.leader else load_model(m.folder, require={"task"}, device=self.device).model
            for m in ensemble.members
        ]
        self.model = JointModel(ensemble, self._models, self._orders).eval()
        self.max_length = min(model.config.max_positions for model in self._models)

    @cached_property
    def run(self) -> Teacher:
        """The models prepared for inference; made on first use."""
        prepared = [prepare(model, self.precision) for model in self._models]
        members = list(zip(prepared, self._orders, strict=True))
        lead, _ = members.pop(self.ensemble.lead)
        return EnsembleTeacher(self.ensemble, self.head, lead, members)

    @property
    def files(self) -> list[Path]:
        """The folders of all of them."""
        return [m.folder for m in self.ensemble.members]


def _usual_runtime(folder: Path, device: str) -> Runtime:
    return model_file.usual_runtime(folder) if device == "cpu" else "torch"


def _check_runtime(runtime: Runtime, device: str, precision: str) -> None:
    if runtime == "torch-sparse":
        require_device(torch.device(device))
    if runtime == "torch-graph":
        require_gpu(torch.device(device))
    if runtime in PROVIDERS and device == "cpu":
        raise UserError(
            f"{runtime} only runs on a CUDA GPU", where=f"--runtime {runtime}",
            do="use --runtime onnxruntime, or --device cuda on a machine with a GPU", code=ExitCode.ENVIRONMENT,
        )  # fmt: skip
    if runtime in ("torch", "torch-sparse", "torch-graph") or runtime in COMPILED or runtime in PROVIDERS:
        return
    if device != "cpu":
        do = "use --runtime onnxruntime-cuda, or --device cpu" if runtime == "onnxruntime" else "use --device cpu"
        raise UserError(f"{runtime} only runs on the CPU", where=f"--device {device}", do=do)
    if precision != "fp32" and runtime != "openvino":
        of = "the file" if runtime == "onnxruntime" else "the quantized model"
        raise UserError(
            f"{runtime} uses the precision of {of}", where=f"--precision {precision}", do="remove --precision"
        )
