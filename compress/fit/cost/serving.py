"""A model as it will be served: rounded as planned, in a runtime, with the bytes that are deployed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from compress.contracts import Batch, FixedLength, LatencyShape, Needs
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.schemes import GROUP4, MATRIX8, POOLER, ROW8, TOKEN8, QuantizationSpec, Rule, few_bits
from compress.encoder.infer.prepare import prepare
from compress.encoder.integers.convert import calibrate, plan_quantization, quantize_model
from compress.encoder.integers.products import prepare_integers
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.onnx.runtimes import IN_TORCH, PROVIDERS, Runtime, package, versions
from compress.predict.predictor import build_fixed_batch
from compress.predict.real_texts import TextCalls, mean_of_calls
from compress.training.precision import serving_precision
from evaluation.cost.latency import Latency

FLOAT = 32
FINGERPRINT = 64  # characters
FEW_BITS = (3, 2)
"""Of weights that lose much where they are not trained: `--train full` alone makes them."""
WEIGHTS: Mapping[int, Mapping[str, object]] = {
    8: MATRIX8,
    4: GROUP4,
    **{bits: few_bits(bits, by_row=True) for bits in FEW_BITS},
}
"""Bits → how a matrix is rounded; its input is rounded to 8 bits, a scale for each token. Of 4 bits, groups of numbers
have scales of their own: there is no integer product of those, so that they save bytes and no time. Of 3 and 2 bits,
rows have scales, and products are those of 8 bits."""
TABLES: Mapping[int, Mapping[str, object]] = {
    8: ROW8,
    4: GROUP4,
    **{bits: few_bits(bits, by_row=True, table=True) for bits in FEW_BITS},
}
BITS: Mapping[Runtime, tuple[int, ...]] = {
    "torch": (FLOAT,),
    "torch-int8": (8, FLOAT),
    "onnxruntime": (8, FLOAT, 4),
    "openvino": (8, FLOAT, 4),
    **dict.fromkeys(PROVIDERS, (FLOAT,)),
}
"""What each runtime computes with: what is first is the usual."""
InputRanges = Literal["per-token", "static"]
"""How the inputs of matrices in 8 bits are rounded: with a scale for each token, or in a range that was calibrated,
which takes less time and loses more."""
STATIC8: Mapping[str, object] = {"kind": "mse", "bits": 8}
"""The range of least squared error: it does not clip, and on tags lost nothing where percentiles lost 8 points."""


@dataclass(frozen=True)
class Serving:
    """What a speed is of: a runtime, and batches of `batch` sequences of `length` tokens, or the `texts` of the data,
    as the parent reads them. Milliseconds are those of a batch; of texts their mean."""

    runtime: Runtime
    batch: int = 1
    length: int = 128
    device: str = "cpu"
    texts: TextCalls | None = field(default=None, compare=False)

    @property
    def shape(self) -> LatencyShape:
        """The condition of its latencies."""
        return FixedLength(self.batch, self.length) if self.texts is None else self.texts.sample.shape

    def at(self, length: int) -> Serving:
        """The same with sequences of one length."""
        return replace(self, length=length, texts=None)

    @property
    def bits(self) -> tuple[int, ...]:
        """Bits of matrices."""
        return BITS[self.runtime]

    @property
    def table_bits(self) -> tuple[int, ...]:
        """Bits of the word table: torch computes with it as it is, and stores it in floats."""
        return (8, 4, FLOAT) if self.writes and self.runtime not in PROVIDERS else (FLOAT,)

    @property
    def writes(self) -> bool:
        """Whether what is deployed is a file."""
        return self.runtime not in IN_TORCH

    def __str__(self) -> str:
        return f"{self.runtime}, {self.shape}"


@dataclass(frozen=True)
class Bits:
    """matrices: module pattern → bits of what it matches, the last pattern that matches counts.  word: bits of the word
    table.  other: bits of the position table and of the projection behind the tables.  ranges: of inputs."""

    matrices: Mapping[str, int]
    word: int
    other: int
    ranges: InputRanges = "per-token"

    @classmethod
    def uniform(cls, bits: int, word: int | None = None) -> Bits:
        return cls({"encoder.layers.*": bits}, bits if word is None else word, bits if bits == FLOAT else 8)


def quantize_to_bits(model: Model, bits: Bits, serving: Serving, texts: Iterable[Batch] = ()) -> Model:
    """The model with its matrices and tables in so many bits; itself where all are floats.

    texts: on which static ranges are calibrated; none is read where inputs have a scale for each token.
    """
    rules = [_matrix(pattern, count, bits.ranges) for pattern, count in bits.matrices.items()]
    if model.config.width != model.config.hidden:
        rules.append(_matrix("encoder.embeddings.projection", bits.other, bits.ranges))
    if serving.writes:
        rules.append(_table("encoder.embeddings.word", bits.word))
        if bits.word in FEW_BITS and model.config.pooler:
            rules.append(_matrix(POOLER, bits.word))
        if model.encoder.embeddings.position is not None and model.config.positions != "sinusoidal":
            rules.append(_table("encoder.embeddings.position", bits.other))
    if all(rule.weight is None for rule in rules):
        return model
    made = quantize_model(model, plan_quantization(QuantizationSpec(scheme=None, rules=tuple(rules)), model)).eval()
    calibrate(made, texts)
    return made


def _matrix(pattern: str, bits: int, ranges: InputRanges = "per-token") -> Rule:
    """Static ranges are of 8 bits alone: products of fewer are no faster by them."""
    if bits == FLOAT:
        return Rule(pattern=pattern)
    given = STATIC8 if ranges == "static" and bits == 8 else TOKEN8
    return Rule.model_validate({"pattern": pattern, "weight": WEIGHTS[bits], "input": given})


def _table(pattern: str, bits: int) -> Rule:
    return Rule(pattern=pattern) if bits == FLOAT else Rule.model_validate({"pattern": pattern, "weight": TABLES[bits]})


def content(model: Model) -> bytes:
    """The file of a model that is rounded as it will be, as long as the one that will be written to the byte."""
    from compress.onnx.encoder import encode
    from compress.onnx.writer import notes_of

    return encode(model, "task", notes=notes_of("0" * FINGERPRINT, "task")).SerializeToString()


Parts = list[Callable[[], object]]
"""A call that is timed part by part: of texts two for each, tokenization and answers."""


def build_parts(model: Model, serving: Serving, written: bytes | None = None) -> Parts:
    """A call of a model in its runtime, on a batch of the serving's shape or on its texts. written: its file, where
    there is one."""
    answer = open_model(model, serving, written)
    if serving.texts is not None:
        return serving.texts.parts(answer)
    batch = build_batch(model.config, serving)
    return [lambda: answer(batch)]


def build_batch(config: EncoderConfig, serving: Serving) -> Batch:
    """Random tokens of the serving's length, or of as many as the model reads."""
    return build_fixed_batch(config, serving.batch, min(serving.length, config.max_positions)).to(serving.device)


def open_model(model: Model, serving: Serving, written: bytes | None = None) -> Callable[[Batch], object]:
    """What answers a batch in the runtime. written: the model's file, where there is one."""
    if serving.writes:
        return open_runtime(content(model) if written is None else written, serving).run
    if serving.runtime == "torch-int8" and model.config.quantization:
        run = prepare_integers(model)
    else:
        run = prepare(model, serving_precision("auto", serving.device))
    needs = Needs(logits=True)
    return lambda batch: run(batch, needs)


def mean_over_texts(serving: Serving, latency: Latency) -> Latency:
    """latency: of `build_parts`. The same of one call, on average over the texts."""
    return latency if serving.texts is None else mean_of_calls(latency, len(serving.texts.tokens))


def open_runtime(written: bytes, serving: Serving):
    """A file in its runtime."""
    from compress.onnx.gpu_session import open_on_gpu
    from compress.onnx.openvino_session import OpenVinoSession
    from compress.onnx.session import OnnxSession

    if serving.runtime in PROVIDERS:
        return open_on_gpu(written, serving.runtime, precision=serving_precision("auto", serving.device))
    return OpenVinoSession(written) if serving.runtime == "openvino" else OnnxSession(written)


def count_stored_bytes(model: Model) -> int:
    """Bytes of the weights that torch reads; a file's are those of `content`."""
    return 4 * sum(p.numel() for p in model.parameters())


def candidates(asked: str | None, device: str) -> list[Runtime]:
    """The runtimes that may serve. Raises UserError for one that this machine lacks."""
    there = versions()
    on_gpu: tuple[Runtime, ...] = ("torch", *PROVIDERS)
    if device != "cpu" and asked in (None, "auto"):
        return ["torch"]
    if asked not in (None, "auto"):
        here = [name for name in BITS if (name not in PROVIDERS if device == "cpu" else name in on_gpu)]
        if asked not in here:
            raise UserError(
                f"fit does not support the runtime {asked} on this device", where="--runtime",
                do=f"use one of {', '.join(here)}",
            )  # fmt: skip
        named: Runtime = asked  # type: ignore[assignment]
        if there[named] is None:
            from compress.onnx.runtimes import make_missing_error

            raise make_missing_error(ImportError(name=package(named)), package(named))
        return [named]
    able: Sequence[Runtime] = [name for name in ("onnxruntime", "openvino") if there[name] is not None]  # type: ignore[misc]
    return list(able) or ["torch-int8"]


__all__ = [
    "BITS",
    "FLOAT",
    "Bits",
    "Serving",
    "build_batch",
    "build_parts",
    "mean_over_texts",
    "open_model",
    "candidates",
    "content",
    "open_runtime",
    "quantize_to_bits",
    "count_stored_bytes",
]
