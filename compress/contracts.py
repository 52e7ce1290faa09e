"""The nouns that travel between the parts: types and protocols, no logic.

Shape letters: B batch (sequences), L length, T packed tokens (sum of the real lengths), D hidden, H heads,
K head width, F feed-forward, V vocabulary, E embedding, C classes, M positions whose vocabulary logits a loss reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


# --- rows of a recipe -------------------------------------------------------------------------------------------

T = TypeVar("T")
ListOf = Annotated[tuple[T, ...], Field(strict=False)]
"""A list in a recipe, a tuple in Python. (Everything else is strict: "3" is not a number, true is not 1.)"""


class Frozen(BaseModel):
    """A block of a recipe: unknown keys are refused, values are not converted, nothing changes afterwards."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        """Found here rather than by `extra`, since only here the legal keys are at hand for the message."""
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    raise PydanticCustomError("unknown_key", "unknown key", {"key": key, "known": [*cls.model_fields]})
        return data


class StageSpec(Frozen):
    """One stage of a recipe, discriminated by `kind`, the name of its folder.

    A verb folder's `spec.py` holds a subclass `Spec` whose `kind` is a Literal; it must not import torch.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"data"})
    """Blocks of the recipe without which no stage of this kind can work."""

    milestone: ClassVar[str | None] = None
    """What its model is called where it is measured beside the result of a later stage; None: it is not measured."""

    trained: ClassVar[str | None] = None
    """What a model is called that a later stage trained on from this one's; None: as its run is."""

    kind: Any  # each kind narrows it to its own Literal

    def needs(self) -> frozenset[str]:
        """Blocks of the recipe that this very row reads: they must be there, and its result depends on them."""
        return self.reads


class PartRow(Frozen):
    """One part of a stage: `kind` is a file of a folder of parts, the other keys its constructor's keywords."""

    kind: str

    def options(self) -> dict[str, Any]:
        """The keywords for the constructor."""
        return {name: getattr(self, name) for name in type(self).model_fields if name not in ("kind", "weight")}


class ObjectiveRow(PartRow):
    """One objective of a stage: a file of compress/objectives, and its weight among the others."""

    weight: float = Field(default=1.0, ge=0)
    """Factor of this objective in the total."""


@dataclass(frozen=True)
class Override:
    """A value that replaces one of the recipe's. origin: what an error blames, e.g. `--seed 1.5`.

    path: keys and list positions joined by dots; `*` stands for every item of a list.
    required: whether a path that leads nowhere is an error.
    """

    path: str
    value: Any
    origin: str
    required: bool = True


@dataclass(frozen=True)
class ChainOptions:
    """How `compress run` goes through the stages of a recipe.

    until: the last one that runs; begin: the first one that is made anew, those before it having been made already;
    both as a person names a stage, None: not asked for.  cached: whether a stage that an earlier run made of the same
    input in the same way is taken from there.
    """

    until: str | None = None
    begin: str | None = None
    cached: bool = True


@dataclass(frozen=True)
class RunOptions:
    """What a person asked for on the command line, beside the recipe's own values.

    recipe: a name or a path, None when the command has its own default.  overrides: in the order given; they hold
    --set and every flag that is a recipe value (--seed, --data, --teacher ...).  device: "cpu" or "cuda", present.
    runtime: what computes a finished model's answers; None: as its folder is meant to be run.  onnx: whether quantized
    results get their file; None: where it can be written.  chain: of a run of all stages, each of them measured; None:
    of other commands.
    """

    recipe: str | None = None
    overrides: tuple[Override, ...] = ()
    device: str = "cpu"
    precision: str = "auto"
    runtime: Literal[
        "torch", "torch-int8", "torch-sparse", "torch-compile", "torchao-int8", "torchao-fp8", "onnxruntime",
        "openvino", "auto",
    ] | None = None  # fmt: skip
    onnx: bool | None = None
    threads: int | None = None
    output: Path | None = None
    resume: bool = False
    dry_run: bool = False
    json: bool = False
    quiet: bool = False
    debug: bool = False
    tracking_uri: str | None = None
    experiment: str | None = None
    chain: ChainOptions | None = None


# --- what goes into the encoder -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """One packed micro-batch: real tokens only, sequences laid end to end.

    input_ids, segment_ids, position_ids: (T,) int64.  cu_seqlens: (B+1,) int64, starts with 0, ends with T.
    max_length: longest sequence.  row_ids: (B,) int64, row numbers in the data set (for reports of bad rows).
    labels: classes (B,) int64; scores (B,) float32; several labels a row (B, C) float32; tags (T,) int64 with -100 on
        the rest; answer spans (B, 2) int64, positions of their first and last token in the row.
    answered: of a task that answers words, (T,) bool: where it does, the first piece of each word; None for the others.
    mlm_positions: (M,) int64 indices into T whose original piece was masked; mlm_labels: (M,) int64 the originals.
    pair_labels: (B,) int64 of NSP (0 = is next) or SOP (0 = in order).
    special_mask: (T,) bool, true on [CLS], [SEP] and the like.
    extra: whatever a task or an augmentation needs beside; what of it has a `to` moves along.
    """

    input_ids: Tensor
    segment_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_length: int
    row_ids: Tensor
    labels: Tensor | None = None
    mlm_positions: Tensor | None = None
    mlm_labels: Tensor | None = None
    pair_labels: Tensor | None = None
    special_mask: Tensor | None = None
    answered: Tensor | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return int(self.cu_seqlens.shape[0]) - 1

    @property
    def tokens(self) -> int:
        return int(self.input_ids.shape[0])

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on `device` (itself when it is already there)."""
        import dataclasses

        import torch as _torch

        moved = {
            f.name: value.to(device, non_blocking=True)
            for f in dataclasses.fields(self)
            if isinstance(value := getattr(self, f.name), _torch.Tensor)
        }
        extra = {name: x.to(device) if hasattr(x, "to") else x for name, x in self.extra.items()}
        return dataclasses.replace(self, **moved, extra=extra)


Layers = bool | frozenset[int]
"""Of which layers something is read: of none, of all, or of these, counted from 0."""


@dataclass(frozen=True)
class Needs:
    """What a caller reads of the encoder's output; nothing else need be computed or kept.

    hidden_states: of layers, -1 the embedding output.  last_hidden: an encoder gives it unasked; who answers from
    memory keeps it only when it is named.
    mlm: vocabulary logits: None (none), "masked" (at batch.mlm_positions) or "all" (every real token).
    temperatures: at which the probabilities of those logits are read, where that is known.
    """

    hidden_states: Layers = False
    attentions: Layers = False
    attention_scores: Layers = False
    projections: Layers = False  # queries, keys, values
    pooled: bool = False
    logits: bool = False  # the task head
    pair_logits: bool = False  # the NSP/SOP head
    mlm: str | None = None
    replaced: bool = False  # the replaced-token head
    last_hidden: bool = False
    temperatures: frozenset[float] = frozenset()

    def __or__(self, other: Needs) -> Needs:
        mlm = "all" if "all" in (self.mlm, other.mlm) else self.mlm or other.mlm
        return Needs(
            _either(self.hidden_states, other.hidden_states),
            _either(self.attentions, other.attentions),
            _either(self.attention_scores, other.attention_scores),
            _either(self.projections, other.projections),
            self.pooled or other.pooled,
            self.logits or other.logits,
            self.pair_logits or other.pair_logits,
            mlm,
            self.replaced or other.replaced,
            self.last_hidden or other.last_hidden,
            self.temperatures | other.temperatures,
        )


def _either(first: Layers, second: Layers) -> Layers:
    if isinstance(first, bool) or isinstance(second, bool):
        return True if True in (first, second) else first or second
    return first | second


@dataclass
class VocabularyOutput:
    """The masked-LM head before the last matrix, so that a loss can compute logits in chunks and only where read.

    features: (M, E) output of the head's transform.  weight: (V, E), tied to the embedding table.  bias: (V,).
    positions: (M,) indices into T, or None for all T tokens in order.
    """

    features: Tensor
    weight: Tensor
    bias: Tensor | None
    positions: Tensor | None = None
    _shared: Tensor | None = field(default=None, init=False, repr=False, compare=False)

    def logits(self) -> Tensor:
        """(M, V)."""
        import torch.nn.functional as F

        return F.linear(self.features, self.weight.to(self.features.dtype), _cast(self.bias, self.features))

    def shared_logits(self) -> Tensor:
        """(M, V), computed at the first call and kept: several losses of one step read the same product."""
        import torch

        kept = self._shared
        if kept is None or (torch.is_grad_enabled() and self.features.requires_grad and not kept.requires_grad):
            kept = self._shared = self.logits()
        return kept


@dataclass
class LikeliestPieces:
    """The k largest vocabulary logits of a position, and how much all others weigh together.

    ids: (M, k) int64.  logits: (M, k), less the position's largest.  tails: temperature t → (M,) log of the sum of
    exp(logit / t) over all other pieces, less the position's largest logit / t; -inf where k is the whole vocabulary.
    positions: as in VocabularyOutput.  vocabulary: V.
    """

    ids: Tensor
    logits: Tensor
    tails: Mapping[float, Tensor]
    vocabulary: int
    positions: Tensor | None = None


def _cast(bias: Tensor | None, like: Tensor) -> Tensor | None:
    return None if bias is None else bias.to(like.dtype)


@dataclass
class EncoderOutput:
    """What a model computed, by name. A field that was not asked for is None.

    last_hidden: (T, D).  hidden_states: N+1 tensors (T, D), the embedding output first.
    attentions: per layer, a list of B tensors (H, l, l) of probabilities; attention_scores the same before softmax.
    queries, keys, values: per layer (T, H, K).  pooled: (B, D).
    logits: (B, C), or (T, C) for token tasks.  pair_logits: (B, 2).  replaced: (T,).
    vocabulary: of the masked-LM head; `likeliest` stands in its place where only the largest logits were kept.
    """

    last_hidden: Tensor
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[list[Tensor], ...] | None = None
    attention_scores: tuple[list[Tensor], ...] | None = None
    queries: tuple[Tensor, ...] | None = None
    keys: tuple[Tensor, ...] | None = None
    values: tuple[Tensor, ...] | None = None
    pooled: Tensor | None = None
    logits: Tensor | None = None
    pair_logits: Tensor | None = None
    vocabulary: VocabularyOutput | None = None
    replaced: Tensor | None = None
    likeliest: LikeliestPieces | None = None


class Teacher(Protocol):
    """A frozen model: called without gradient, in evaluation mode, possibly in another precision."""

    def __call__(self, batch: Batch, needs: Needs) -> EncoderOutput: ...


# --- training ---------------------------------------------------------------------------------------------------


class TrainingPlan(Frozen):
    """How long and how to train: the `training:` block of every stage, and what the loop is given."""

    epochs: float | None = Field(default=None, gt=0, le=10_000)
    """Passes over the data; give this or `steps`."""
    steps: int | None = Field(default=None, gt=0)
    """Optimizer steps; give this or `epochs`."""
    batch_rows: int = Field(default=32, gt=0)
    """Sequences per optimizer step."""
    max_tokens: int = Field(default=8192, gt=0)
    """Most real tokens in one micro-batch; a step with more is split and its gradients are added exactly."""
    learning_rate: float = Field(default=5e-5, gt=0, lt=1)
    """At its peak, after the warm-up."""
    optimizer: Literal["adamw", "lamb"] = "adamw"
    """adamw: 1711.05101.  lamb: each matrix moves in proportion to its own size (1904.00962), for large batches."""
    betas: Annotated[tuple[float, float], Field(strict=False)] = (0.9, 0.999)
    """Of the optimizer: decay of the mean and of the square of the gradient."""
    eps: float = Field(default=1e-8, gt=0)
    """Of the optimizer: added to the denominator."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Not applied to biases and norms."""
    warmup: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps with a linearly rising learning rate."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the learning rate falls after the warm-up."""
    clip_norm: float | None = Field(default=1.0, gt=0)
    """Largest norm of the whole gradient; null: not clipped."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the matrix products; weights and optimizer stay fp32. auto: bf16 where the device computes in it."""
    validate_every: int | None = Field(default=None, gt=0)
    """Steps between validations; null: at the end of every epoch."""
    validate_start: bool = False
    """Also validate before the first step, so that training from good weights cannot end with worse ones."""
    keep_best: bool = True
    """Finish with the weights of the best validation instead of the last."""
    checkpoint_every: int = Field(default=500, gt=0)
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(default=2, gt=0)
    """How many of the newest stay until the stage is done."""
    log_every: int = Field(default=10, gt=0)
    """Steps between the points of the training curves."""
    max_bad_steps: int = Field(default=3, ge=0)
    """Steps with a non-finite loss or gradient that are skipped before the run stops."""

    @model_validator(mode="after")
    def _one_length(self) -> TrainingPlan:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give exactly one of epochs and steps")
        return self

    @property
    def length(self) -> str:
        """`500 steps` or `3 epochs`, for people."""
        return f"{self.steps:,} steps" if self.steps else f"{self.epochs:g} epochs"


class MaskingSpec(Frozen):
    """Which pieces of a text masked-LM hides: the `masking:` block of the stages that read a corpus."""

    strategy: Literal["dynamic", "static", "distilbert"] = "dynamic"
    """dynamic: drawn anew each epoch.  static: drawn once.  distilbert: whole batch, rare pieces more often."""
    whole_word: bool = False
    """Hide all pieces of a chosen word."""
    ngrams: int = Field(default=1, ge=1, le=16)
    """With whole_word: runs of up to so many words are hidden together, n of them with probability in proportion to 1/n
    (ALBERT, 1909.11942: 3)."""
    word_list: str | None = Field(default=None, min_length=1)
    """With whole_word, for text without spaces: a file with one word a line; the longest one found is a word."""
    segmenter: str | None = Field(default=None, min_length=1)
    """With whole_word: a function of yours that cuts a text into words, `module:function`, e.g. jieba:lcut."""
    probability: float = Field(default=0.15, gt=0, lt=1)
    """Share of the pieces that are chosen."""
    mask: float = Field(default=0.8, ge=0, le=1)
    """Share of the chosen that becomes [MASK]."""
    random: float = Field(default=0.1, ge=0, le=1)
    """Share of the chosen that becomes another piece."""
    keep: float = Field(default=0.1, ge=0, le=1)
    """Share of the chosen that stays as it is."""

    @model_validator(mode="after")
    def _shares(self) -> MaskingSpec:
        if abs(self.mask + self.random + self.keep - 1) > 1e-6:
            raise ValueError(f"mask + random + keep is {self.mask + self.random + self.keep:g}, it must be 1")
        if self.whole_word and self.strategy == "distilbert":
            raise ValueError("strategy distilbert chooses pieces, not whole words; set whole_word to false")
        if self.ngrams > 1 and not self.whole_word:
            raise ValueError("ngrams are of whole words, which are not asked for; set whole_word to true")
        given = [name for name in ("word_list", "segmenter") if getattr(self, name) is not None]
        if len(given) == 2:
            raise ValueError("words come from word_list or from segmenter; leave one out")
        if given and not self.whole_word:
            raise ValueError(f"{given[0]} is of whole words, which are not asked for; set whole_word to true")
        return self

    def check_noise(self, noise: NoiseSpec | None) -> None:
        """Raise ValueError for noise in text whose hidden pieces are drawn once."""
        if noise is not None and self.strategy == "static":
            raise ValueError("static masking hides the same pieces in every epoch, and noise gives each epoch others")


NOISE_KINDS = ("swap", "drop", "insert", "keyboard")


class NoiseSpec(Frozen):
    """Typing mistakes in the training text, drawn anew each epoch: the `noise:` block of a stage."""

    kinds: Annotated[ListOf[Literal["swap", "drop", "insert", "keyboard"]], Field(min_length=1)] = NOISE_KINDS
    """swap: two neighbours.  drop: a character lost.  insert: one too many.  keyboard: the key beside it."""
    rate: float = Field(default=0.05, ge=0, le=1)
    """Share of the letters and digits that are mistyped."""

    @field_validator("kinds")
    @classmethod
    def _once(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise ValueError(f"{kind} is named twice")
        return kinds


class Objective(Protocol):
    """Something to minimise. An nn.Module: its projections, if any, train and are dropped at `finish`.

    The value is a mean over `count(batch)` terms (real tokens, rows, masked positions ...), so that micro-batches of
    one step combine exactly: the loop weighs each by its share of the step's count. count 0 means: nothing here.
    """

    student_needs: Needs
    teacher_needs: Needs | None  # None: works without a teacher

    def count(self, batch: Batch) -> int: ...

    def __call__(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor: ...


@dataclass(frozen=True)
class LayerChoice:
    """Which layers of a model a criterion keeps, and why the others go.

    keep: ascending, counted from 0.  reasons: layer that goes → why, in the order in which they go.  scores: layer →
    its score, of criteria that give each layer one.  of_sets: layers kept → score, of criteria that try whole sets.
    score: what those numbers are, in words.
    """

    keep: tuple[int, ...]
    reasons: Mapping[int, str]
    scores: Mapping[int, float] = field(default_factory=dict)
    of_sets: Mapping[tuple[int, ...], float] = field(default_factory=dict)
    score: str = ""


class LayerCriterion(Protocol):
    """A way to choose the layers that stay. reads_text, reads_labels: what it cannot choose without."""

    reads_text: ClassVar[bool]
    reads_labels: ClassVar[bool]

    def __call__(self, study: Any, keep: int, protected: frozenset[int]) -> LayerChoice:
        """`keep` layers of the studied model (a `prune_layers.study.LayerStudy`), all of `protected` among them.

        Raises UserError where it cannot choose.
        """
        ...


@dataclass(frozen=True)
class WidthScores:
    """How much each head and each neuron is needed: of every unit of the attention (H,) and of the feed-forward parts
    (F,), float64 on the CPU. A unit is a layer, or the layers that share its matrices.

    lost: of each unit, those of heads first, (n+1,) what is lost with 0..n of the highest scores kept, where more is
    known of it than the sum of what goes; empty: that sum.
    """

    heads: Sequence[Tensor]
    neurons: Sequence[Tensor]
    lost: Sequence[Tensor] = ()


class WidthImportance(Protocol):
    """A way to tell which heads, neurons and channels of the hidden states are needed.

    reads_text, reads_labels: what it cannot score without.  in_loss: scores are expected rises of a loss, so that
    heads, neurons and layers compare; else they compare within one kind only.  rearranges: what goes is chosen
    together, as a sum of gradients, and not one by one.  refits: output matrices are fitted anew to what is left.
    """

    reads_text: ClassVar[bool]
    in_loss: ClassVar[bool]
    rearranges: ClassVar[bool]
    refits: ClassVar[bool]

    @property
    def reads_labels(self) -> bool:
        """Whether this one needs labels."""
        ...

    def __call__(self, study: Any) -> WidthScores:
        """Of the studied model (a `prune_width.study.WidthStudy`). Raises UserError where it cannot score."""
        ...

    def hidden(self, study: Any) -> Tensor:
        """(D,) the same of each channel of the hidden states."""
        ...


@dataclass(frozen=True)
class LayerGroups:
    """For each layer, the group whose attention and whose feed-forward matrices it uses; any numbers."""

    attention: tuple[int, ...]
    feed_forward: tuple[int, ...]


@dataclass(frozen=True)
class LayerEvidence:
    """What a sharing pattern may measure of the model on real input; nothing is computed before it is called.

    similarity: (N, N) float64, how alike the outputs of every two layers are, 1 for the same.  damage: how far the
    answers move when layers share so, nothing trained: mean KL divergence in nats, of a score the squared difference.
    """

    similarity: Callable[[], Any]
    damage: Callable[[LayerGroups], float]


class SharingPattern(Protocol):
    """Which layers share their matrices."""

    def __call__(self, depth: int, evidence: LayerEvidence) -> LayerGroups:
        """The groups of a model of `depth` layers. Raises UserError where the pattern does not fit."""
        ...


@dataclass(frozen=True)
class Member:
    """A matrix of one of the layers that will share it, fp64.

    weight: (out, in), with the bias as one more column where biases are shared; of a norm (D, 1 or 2).
    inputs: (in, in) mean of x xᵀ over tokens of what it is multiplied with (x ends with a 1 where there is a bias);
    None of a norm, and where no start reads it.  fisher: as weight, mean squared gradient; None where it is not read.
    """

    weight: Tensor
    inputs: Tensor | None = None
    fisher: Tensor | None = None


class SharedStart(Protocol):
    """What the matrices of a group start from. reads: "nothing", "inputs" or "gradients" of the members."""

    reads: ClassVar[str]

    def __call__(self, members: Sequence[Member]) -> Tensor:
        """(out, in) as the members' weights."""
        ...


@dataclass(frozen=True)
class Seen:
    """A matrix that is to be split in two, or to lose half of its weights, and what is known of it, fp64.

    weight: (out, in).  inputs: (in, in) mean of x xᵀ over tokens.  mean: (in,) of x, None where the layer has no bias
    that could take it up.  fisher: (out, in) mean squared gradient. None where the method does not read it.
    """

    weight: Tensor
    inputs: Tensor | None = None
    mean: Tensor | None = None
    fisher: Tensor | None = None


@dataclass(frozen=True)
class Factors:
    """The products of every rank r: outer[:, :r] @ inner[:r].

    outer: (out, m), inner: (m, in), m the smaller side.  values: (m,) what each rank takes off the error, falling.
    centred: the bias takes up the mean of what is lost.
    """

    outer: Tensor
    inner: Tensor
    values: Tensor
    centred: bool = False


class FactorMethod(Protocol):
    """A way to split a matrix. reads: "nothing", "inputs" or "gradients" of it."""

    reads: ClassVar[str]

    def __call__(self, seen: Seen) -> Factors: ...


@dataclass(frozen=True)
class Zeroed:
    """weight: (out, in) with two zeros in every four neighbours of a row, fp64.  centred: the bias takes up the mean of
    what is lost."""

    weight: Tensor
    centred: bool = False


class SparseMethod(Protocol):
    """A way to choose which two of every four weights go, and what becomes of the others. Given `inputs` and `mean`."""

    def __call__(self, seen: Seen) -> Zeroed: ...


@dataclass(frozen=True)
class Scheme:
    """What the integer codes of a tensor look like: number = (code - zero point) * scale.

    bits: of a code.  lowest, highest: the codes in use.  group: of per "group".
    per: what shares one scale: "tensor"; "row" of a matrix or table (an output channel, a word); "group" of so many
    neighbours in a row, the last one of a row maybe shorter; "token", each vector along the last dimension of an
    activation, whose scale is computed when it is seen.
    overflow_safe: of a matrix, whether the scale is such that int8 products are exact on processors without VNNI.
    """

    bits: int
    lowest: int
    highest: int
    per: Literal["tensor", "row", "group", "token"]
    group: int | None = None
    overflow_safe: bool = False

    @property
    def signed(self) -> bool:
        return self.lowest < 0

    @property
    def dynamic(self) -> bool:
        """Whether the scale is a function of the very activation: nothing is calibrated, nothing stored."""
        return self.per == "token"


@dataclass(frozen=True)
class QuantizedTensor:
    """Integer codes and what they stand for: (code - zero_point) * scale, in fp32.

    codes: int8, uint8 where the scheme is not signed, int16 from 9 bits on; shaped as the tensor, one code to a number
    whatever its bits.
    scale: fp32, > 0; () per tensor, (rows,) per row, (rows, groups) per group, the leading dimensions per token.
    zero_point: int32, shaped as scale; 0 where the scheme is symmetric.
    """

    codes: Tensor
    scale: Tensor
    zero_point: Tensor
    scheme: Scheme


class Quantizer(Protocol):
    """How the numbers of one tensor become integers and back: an nn.Module, a file of compress/quantizers.

    Built as `registry.build("compress.quantizers", row, shape)`; shape: of the weight or table, None of an activation.
    Everything it learns or measures is in its `state_dict`, so that a stored model reloads to the same bits.
    """

    fits: ClassVar[frozenset[str]]
    """What it can be put on: "weight" of a linear layer, "table" of embeddings, "input" of a linear layer."""
    calibrated: ClassVar[bool]
    """Whether it must `observe` real input, and `freeze`, before it can be used."""
    scheme: Scheme

    def observe(self, x: Tensor) -> None:
        """Note the range of x (.., K). Does nothing where nothing is to be noted."""
        ...

    def freeze(self) -> None:
        """Settle scale and zero point from what was observed; they do not move in evaluation from then on.

        Raises UserError where nothing was observed, or only constants, or numbers that are not finite.
        """
        ...

    def __call__(self, x: Tensor, of: Tensor | None = None) -> Tensor:
        """x rounded to the codes and back, in fp32; gradients as straight-through estimation has them (1308.3432).

        of: of a table, all of it where x are some rows.
        """
        ...

    def scale_and_zero_point(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As in QuantizedTensor, both fp32. x: the weight, or the activation where the scheme is dynamic."""
        ...

    def export(self, x: Tensor) -> QuantizedTensor:
        """x as integers, the very codes that the call rounds to."""
        ...


class BatchSource(Protocol):
    """Batches whose order is a pure function of (seed, epoch): any position can be rebuilt without replay."""

    fingerprint: str  # sha256 of data, tokenizer, encoding, order rule

    def steps(self, epoch: int) -> int:
        """Optimizer steps in this epoch."""
        ...

    def step(self, epoch: int, index: int) -> Sequence[Batch]:
        """The micro-batches of one optimizer step; masking and augmentation depend on (seed, epoch, index) alone."""
        ...


@dataclass(frozen=True)
class StageResult:
    """What a finished stage leaves: the folder of its model, and what is worth telling."""

    folder: Path
    steps: int
    seconds: float
    best: Mapping[str, float] = field(default_factory=dict)
    start: Mapping[str, float] = field(default_factory=dict)
    """What validation gave before the first step, where it was asked."""
    source: Path | None = None
    """The folder of the earlier run that it was taken from, where it was."""


# --- evaluation -------------------------------------------------------------------------------------------------


SPECIAL_TOKENS: Mapping[str, Sequence[str]] = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
"""Role → the names that its token goes by, most usual first."""


FAKE = "fake_quantized/"
"""Begins the name of what a model answers whose integers are computed in floats: no figure of a deployed file."""


@dataclass(frozen=True)
class Measurement:
    """One model, measured. values: flat names as logged to MLflow (`quality/accuracy`, `speed/latency_p50_ms` ...).

    context: device, threads, runtime, precision, batch shape, data set and digest, package versions: without these
    a figure must not be compared.
    """

    values: Mapping[str, float]
    context: Mapping[str, str]
    predictions: Path | None = None


class RunLog(Protocol):
    """One tracked run as the pipeline sees it: every call appends to a local journal and returns at once."""

    def params(self, values: Mapping[str, Any]) -> None: ...

    def tags(self, values: Mapping[str, str]) -> None: ...

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None: ...

    def artifact(self, path: Path, folder: str = "") -> None: ...

    def note(self, markdown: str) -> None: ...


class Progress(Protocol):
    """Told about long work. `update` is cheap enough to call every step."""

    def update(self, done: int, **figures: float | str) -> None: ...
