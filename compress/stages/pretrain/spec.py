"""Recipe keys of stage pretrain."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator
from pydantic_core.core_schema import ValidationInfo

from compress.contracts import Frozen, MaskingSpec, NoiseSpec, StageSpec, TrainingPlan
from compress.contracts.traits import (
    Rejection,
    Start,
    rejects_dropped_tokens,
    rejects_quantized,
    rejects_static,
)
from compress.encoder.config.sharing import build_contiguous_groups


class EncoderSpec(Frozen):
    """Shape of the encoder; the defaults are BERT-base (arXiv 1810.04805)."""

    layers: int = Field(default=12, gt=0, le=512)
    """Number of transformer layers."""
    hidden: int = Field(default=768, gt=0, le=65_536)
    """Hidden size."""
    heads: int = Field(default=12, gt=0, le=1024)
    """Attention heads per layer; must divide `hidden`."""
    intermediate_size: int = Field(default=3072, gt=0, le=262_144)
    """Feed-forward size (`intermediate_size` in transformers' configs)."""
    embedding: int | None = Field(default=None, gt=0, le=65_536)
    """Embedding size; if it differs from `hidden`, the embedding is factorized (ALBERT). Default: as `hidden`."""
    groups: int | None = Field(default=None, ge=1, le=512)
    """ALBERT's hidden groups: number of groups of neighbouring layers that share parameters. Default: no sharing."""
    inner: int = Field(default=1, ge=1, le=512)
    """Layers of one group, which run one after the other (ALBERT's inner groups); must divide `layers`."""
    activation: Literal["gelu", "gelu_new", "relu", "silu"] = "gelu"
    """Activation of the feed-forward part. gelu_new: the tanh approximation of GELU."""
    max_positions: int = Field(default=512, ge=3, le=1_000_000)
    """Maximum sequence length in tokens."""
    norm: Literal["post", "pre"] = "post"
    """Position of LayerNorm. post: after each residual sum, as in BERT.  pre: before attention and feed-forward."""
    positions: Literal["learned", "sinusoidal", "sinusoidal_start"] = "learned"
    """Position embeddings. learned: from random values.  sinusoidal: fixed.  sinusoidal_start: learned, initialized as
    sinusoidal."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of hidden states and attention."""
    segments: int = Field(default=2, ge=0, le=16)
    """Number of segment types (`type_vocab_size` in transformers' configs); 0: no segments."""
    pooler: bool = True
    """Add the pooler: the dense layer over [CLS] that BERT's task and pair heads read."""
    initializer_range: float | None = Field(default=None, gt=0, le=1)
    """Standard deviation of the initial weights, as in transformers' configs. Default: BERT's 0.02, for hidden sizes of
    about 768; a narrower encoder learns sooner with more: 1 / sqrt(hidden) keeps the scale of the inputs."""

    @field_validator("heads")
    @classmethod
    def _divides(cls, heads: int, info: ValidationInfo) -> int:
        hidden = info.data.get("hidden")
        if hidden is not None and hidden % heads:
            fitting = [h for h in range(1, hidden + 1) if hidden % h == 0]
            near = min(fitting, key=lambda h: abs(h - heads))
            raise ValueError(f"hidden {hidden} is not divisible by {heads} heads; the nearest that fits is {near}")
        return heads

    @field_validator("inner")
    @classmethod
    def _inner(cls, inner: int, info: ValidationInfo) -> int:
        layers, groups = info.data.get("layers"), info.data.get("groups")
        if inner > 1 and groups is None and "groups" in info.data:
            raise ValueError("inner needs groups; set groups: 1")
        if layers is not None and layers % inner:
            fitting = ", ".join(str(n) for n in range(1, layers + 1) if layers % n == 0)
            raise ValueError(f"{layers} layers are not divisible by inner {inner}; use {fitting}")
        if layers is not None and groups is not None and groups > layers // inner:
            raise ValueError(f"{groups} groups of {inner} layers need more than {layers} layers; use fewer groups")
        return inner

    @model_serializer(mode="wrap")
    def _without_later_keys(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """`initializer_range` is newer than many a recipe: hashes of those without it stay as they were."""
        return {k: v for k, v in handler(self).items() if k != "initializer_range" or v is not None}

    def layer_groups(self) -> tuple[int, ...] | None:
        """For each layer, the group of parameters that it uses; None: its own."""
        if self.groups is None:
            return None
        runs = build_contiguous_groups(self.layers // self.inner, self.groups)
        return tuple(run * self.inner + place for run in runs for place in range(self.inner))


class GeneratorSpec(Frozen):
    """The generator of replaced-token detection (ELECTRA, arXiv 2003.10555): a masked-LM encoder that is as deep as the
    encoder, shares its embedding tables, and is dropped at the end."""

    size: float = Field(default=0.25, gt=0, le=1)
    """Hidden size, heads and feed-forward size as a fraction of the encoder's; the paper uses 1/4 to 1/2."""
    weight: float = Field(default=50.0, gt=0, le=1e6)
    """Weight of the replaced-token loss beside the generator's masked-LM loss (lambda in the paper)."""

    def shape(self, encoder: EncoderSpec) -> tuple[int, int, int]:
        """(hidden, heads, feed-forward size). Raises ValueError for a size that gives no whole heads."""
        heads = max(1, round(encoder.heads * self.size))
        hidden = round(encoder.hidden * self.size)
        if not hidden or hidden % heads:
            near = next((n for n in range(hidden, encoder.hidden + 1) if n and n % heads == 0), encoder.hidden)
            raise ValueError(
                f"generator.size {self.size:g} of hidden {encoder.hidden} is {hidden}, which cannot be divided among "
                f"{heads} heads; the next size that fits is {near / encoder.hidden:.4g}"
            )
        return hidden, heads, max(1, round(encoder.intermediate_size * self.size))


class Spec(StageSpec):
    """Pretrain an encoder with masked language modelling, with or without sentence pairs, or with replaced-token
    detection: a new one from random weights, or a checkpoint."""

    reads: ClassVar[frozenset[str]] = frozenset({"corpus"})
    compresses: ClassVar[bool] = False
    for_task: ClassVar[bool] = False
    pretrains: ClassVar[bool] = True

    kind: Literal["pretrain"]
    encoder: EncoderSpec | None = None
    """Shape of a new encoder with random weights. Default: the model that the stage starts from is pretrained further,
    with its own tokenizer."""
    masking: MaskingSpec = MaskingSpec()
    sentence_pairs: Literal["nsp", "sop", "none"] = "none"
    """Second pretraining task. nsp: next-sentence prediction (BERT).  sop: sentence-order prediction (ALBERT)."""
    across_documents: bool = False
    """Let blocks continue into the next document (FULL-SENTENCES of RoBERTa). false: a block ends with its document."""
    generator: GeneratorSpec | None = None
    """Replaced-token detection: a generator fills the masked tokens, and the encoder learns which tokens were replaced.
    Default: the encoder itself predicts the masked tokens."""
    noise: NoiseSpec | None = None
    """Typo noise in the training text, before tokenization; held-out text stays clean."""
    block_length: int | None = Field(default=None, ge=8, le=1_000_000)
    """Length of a block in tokens. Default: the corpus' max_length."""
    training: TrainingPlan

    @field_validator("sentence_pairs")
    @classmethod
    def _segments(cls, pairs: str, info: ValidationInfo) -> str:
        encoder = info.data.get("encoder")
        if encoder is not None and pairs != "none" and (encoder.segments < 2 or not encoder.pooler):
            raise ValueError(f"{pairs} needs an encoder with 2 segments and a pooler")
        return pairs

    @model_validator(mode="after")
    def _together(self) -> Spec:
        if self.across_documents and self.sentence_pairs != "none":
            raise ValueError(
                f"sentence_pairs: {self.sentence_pairs} cannot be combined with across_documents; remove one"
            )
        self.masking.check_noise(self.noise)
        if self.generator is not None:
            self._check_generator(self.generator, self.encoder)
        return self

    def _check_generator(self, generator: GeneratorSpec, encoder: EncoderSpec | None) -> None:
        if encoder is None:
            raise ValueError("a generator needs a new encoder; set encoder, or remove generator")
        if self.sentence_pairs != "none":
            raise ValueError(f"sentence_pairs: {self.sentence_pairs} cannot be combined with a generator; remove one")
        if encoder.pooler:
            raise ValueError("replaced-token detection has no pooler, as in ELECTRA; set encoder.pooler: false")
        if encoder.groups is not None:
            raise ValueError("a generator cannot be combined with shared layers; remove encoder.groups or generator")
        if self.masking.mask == 0:
            raise ValueError("a generator needs masked tokens; set masking.mask above 0")
        generator.shape(encoder)

    @model_serializer(mode="wrap")
    def _without_later_keys(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """`generator` is newer than many a recipe: hashes of those without it stay as they were."""
        return {k: v for k, v in handler(self).items() if k != "generator" or v is not None}

    @field_validator("block_length")
    @classmethod
    def _fits(cls, length: int | None, info: ValidationInfo) -> int | None:
        encoder = info.data.get("encoder")
        if encoder is not None and length is not None and length > encoder.max_positions:
            raise ValueError(f"found {length}, allowed: at most the encoder's max_positions, {encoder.max_positions}")
        return length

    def starts_from(self) -> Start:
        return "input" if self.encoder is None else "random"

    def rejects(self) -> tuple[Rejection, ...]:
        if self.encoder is not None:
            return ()
        return (rejects_static("pretrain"), rejects_quantized("pretraining it"), rejects_dropped_tokens("pretraining"))
