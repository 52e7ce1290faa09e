"""What a recipe may say about pretraining an encoder from nothing."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core.core_schema import ValidationInfo

from compress.contracts import Frozen, MaskingSpec, NoiseSpec, StageSpec, TrainingPlan
from compress.contracts.traits import Start
from compress.encoder.config.sharing import contiguous


class EncoderSpec(Frozen):
    """Shape of the encoder; the defaults are BERT-base (1810.04805)."""

    layers: int = Field(default=12, gt=0, le=512)
    """Transformer blocks."""
    hidden: int = Field(default=768, gt=0, le=65_536)
    """Width of a token between the layers."""
    heads: int = Field(default=12, gt=0, le=1024)
    """Attention heads of a layer; they must divide `hidden`."""
    feed_forward: int = Field(default=3072, gt=0, le=262_144)
    """Width inside the feed-forward part."""
    embedding: int | None = Field(default=None, gt=0, le=65_536)
    """Width of the embedding table; null: as `hidden`. Another width is factorized (ALBERT)."""
    groups: int | None = Field(default=None, ge=1, le=512)
    """ALBERT's groups of layers, runs of neighbours that are one each; null: every layer is its own."""
    inner: int = Field(default=1, ge=1, le=512)
    """Layers of one group, which run one after the other (ALBERT's inner groups); they must divide `layers`."""
    activation: Literal["gelu", "gelu_new", "relu", "silu"] = "gelu"
    """Of the feed-forward part; gelu_new is the tanh approximation."""
    max_positions: int = Field(default=512, ge=3, le=1_000_000)
    """Longest sequence that the encoder reads."""
    norm: Literal["post", "pre"] = "post"
    """post: after each residual sum, as in BERT.  pre: before each part."""
    positions: Literal["learned", "sinusoidal", "sinusoidal_start"] = "learned"
    """sinusoidal: fixed.  sinusoidal_start: learned from there on."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Of hidden states and of attention."""
    segments: int = Field(default=2, ge=0, le=16)
    """Kinds of segments, 0 for none."""
    pooler: bool = True
    """The dense layer over [CLS] that BERT's task and pair heads read."""

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
            raise ValueError("inner groups need groups; give groups: 1")
        if layers is not None and layers % inner:
            fitting = ", ".join(str(n) for n in range(1, layers + 1) if layers % n == 0)
            raise ValueError(f"{inner} does not divide {layers} layers; use {fitting}")
        if layers is not None and groups is not None and groups > layers // inner:
            raise ValueError(f"{groups} groups of {inner} layers are more than {layers} layers")
        return inner

    def layer_groups(self) -> tuple[int, ...] | None:
        """For each layer, the group of parameters that it uses; None: its own."""
        if self.groups is None:
            return None
        runs = contiguous(self.layers // self.inner, self.groups)
        return tuple(run * self.inner + place for run in runs for place in range(self.inner))


class Spec(StageSpec):
    """Masked-LM, with or without sentence pairs, from random weights."""

    reads: ClassVar[frozenset[str]] = frozenset({"corpus"})
    compresses: ClassVar[bool] = False
    for_task: ClassVar[bool] = False
    pretrains: ClassVar[bool] = True

    kind: Literal["pretrain"]
    encoder: EncoderSpec
    masking: MaskingSpec = MaskingSpec()
    sentence_pairs: Literal["nsp", "sop", "none"] = "none"
    """nsp: is this the next text (BERT).  sop: are these two in order (ALBERT)."""
    across_documents: bool = False
    """Blocks run on into the next document (RoBERTa's full sentences); false: they end with theirs."""
    noise: NoiseSpec | None = None
    """Typing mistakes in the training text, before it is tokenized; the held-out text stays clean."""
    block_length: int | None = Field(default=None, ge=8, le=1_000_000)
    """Pieces of one block; null: the corpus' max_length."""
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
            raise ValueError(f"{self.sentence_pairs} needs blocks that end with their document; leave one of both out")
        self.masking.check_noise(self.noise)
        return self

    @field_validator("block_length")
    @classmethod
    def _fits(cls, length: int | None, info: ValidationInfo) -> int | None:
        encoder = info.data.get("encoder")
        if encoder is not None and length is not None and length > encoder.max_positions:
            raise ValueError(f"found {length}, allowed: at most the encoder's max_positions, {encoder.max_positions}")
        return length

    def starts_from(self) -> Start:
        return "random"
