"""Protocols of the parts that the registry finds, and what they give back. Shape letters as in `batch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from compress.contracts.batch import Batch, EncoderOutput, Needs, Teacher
    from evaluation.representation.angles import LayerAngles
    from evaluation.representation.cka import LayerCKA


class Objective(Protocol):
    """Something to minimise. An nn.Module: its projections, if any, train and are dropped at `finish`.

    The value is a mean over `count(batch)` terms (real tokens, rows, masked positions ...), so that micro-batches of
    one step combine exactly: the loop weighs each by its share of the step's count. count 0 means: nothing here.
    """

    student_needs: Needs
    teacher_needs: Needs | None
    """None: works without a teacher."""

    coupled: ClassVar[bool]
    """Whether the value of a row depends on the other rows of its batch."""

    softens: ClassVar[bool]
    """Whether its temperature, if it has one, divides the logits of student and teacher: `--temperature` sets it."""

    def bind(self, pair: Any) -> None:
        """Make what depends on the two models (`encoder.config.layer_maps.ModelPair`). Raises UserError for models
        that this objective cannot compare."""
        ...

    def count(self, batch: Batch) -> int: ...

    def __call__(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor: ...


@dataclass(frozen=True)
class LayerChoice:
    """Which layers of a model a criterion keeps, and why the others go.

    keep: ascending, counted from 0.  reasons: layer that goes → why, in the order in which they go.  scores: layer →
    its score, of criteria that give each layer one.  of_sets: layers kept → score, of criteria that try whole sets.
    score: what those numbers are, in words.  form: of one of them, in tables and reasons alike.
    """

    keep: tuple[int, ...]
    reasons: Mapping[int, str]
    scores: Mapping[int, float] = field(default_factory=dict)
    of_sets: Mapping[tuple[int, ...], float] = field(default_factory=dict)
    score: str = ""
    form: str = "{:.4f}"


class LayerStudy(Protocol):
    """What a criterion reads of a model and its text (`stages.prune_layers.study.LayerStudy`).

    model: an `encoder.modules.model.Model`.  batches: encoded text, with labels where there are any.  steps: the same
    rows a few at a time and in random order, for what is trained.  depth: number of layers.  seed: of what is random.
    """

    model: Any
    batches: Sequence[Batch]
    steps: Sequence[Batch]
    depth: int
    seed: int
    name: str
    stop: Callable[[], None]

    def cka(
        self,
        taken: Literal["tokens", "cls", "mean"] = "tokens",
        *,
        keep: Sequence[int] | None = None,
        kernel: str = "linear",
        bandwidth: float = 1.0,
    ) -> LayerCKA: ...

    def angles(self) -> LayerAngles: ...

    def states(self, keep: Sequence[int] | None = None) -> Iterator[tuple[Batch, list[Tensor]]]: ...

    def loss(self, keep: Sequence[int]) -> float: ...

    def losses(self, sets: Iterable[Sequence[int]]) -> dict[tuple[int, ...], float]: ...

    def gradients(self) -> Tensor: ...

    def summed_loss(self, output: EncoderOutput, batch: Batch) -> Tensor: ...

    def terms(self, batch: Batch) -> int: ...

    @property
    def labelled(self) -> bool: ...


class LayerCriterion(Protocol):
    """A way to choose the layers that stay. reads_text, reads_labels: what it cannot choose without."""

    reads_text: ClassVar[bool]
    reads_labels: ClassVar[bool]

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
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


class WidthStudy(Protocol):
    """What an importance reads of a model and its text (`stages.prune_width.study.WidthStudy`).

    model: an `encoder.modules.model.Model`.  trained: the model whose weights the importance trained along, set by it;
    None: nothing was trained.  told: takes steps done and steps in all from those that train.  target: what is to be
    left (`stages.prune_width.study.Target`).  teacher: who recovers the model, where that is another model.  on: what a
    loss is on, "labels", "answers" or "teacher".  Gradients and curvatures are `encoder.modules.gates.Widths`.
    """

    model: Any
    trained: Any
    batches: Sequence[Batch]
    seed: int
    name: str
    stop: Callable[[], None]
    told: Callable[[int, int], None]
    target: Callable[[], Any]
    teacher: Teacher | None

    @property
    def labelled(self) -> bool: ...

    @property
    def moments(self) -> Any: ...

    def steps(self) -> Iterator[Batch]: ...

    def gradients(self, on: Any = "labels") -> Any: ...

    def curvatures(self) -> Any: ...

    def factors(self, on: Any = "answers") -> Mapping[tuple[str, int], Any]: ...

    def stream_gradients(self, on: Any = "labels") -> Tensor: ...

    def stream_curvatures(self) -> Tensor: ...


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

    def __call__(self, study: WidthStudy) -> WidthScores:
        """Of the studied model (a `prune_width.study.WidthStudy`). Raises UserError where it cannot score."""
        ...

    def hidden(self, study: WidthStudy) -> Tensor:
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
class MatrixStatistics:
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

    def __call__(self, seen: MatrixStatistics) -> Factors: ...


@dataclass(frozen=True)
class SparseWeights:
    """weight: (out, in) with two zeros in every four neighbours of a row, fp64.  centred: the bias takes up the mean of
    what is lost."""

    weight: Tensor
    centred: bool = False


class SparseMethod(Protocol):
    """A way to choose which two of every four weights go, and what becomes of the others. Given `inputs` and `mean`."""

    def __call__(self, seen: MatrixStatistics) -> SparseWeights: ...


@dataclass(frozen=True)
class Scheme:
    """What the integer codes of a tensor look like: number = (code - zero point) * scale.

    bits: of a code.  lowest, highest: the codes in use.  group: of per "group".
    per: what shares one scale: "tensor"; "row" of a matrix or table (an output channel, a word); "group" of so many
    neighbours in a row, the last one of a row maybe shorter; "token", each vector along the last dimension of an
    activation, whose scale is computed when it is seen.
    overflow_safe: of a matrix, whether the scale is such that int8 products are exact on processors without VNNI.
    scale_bits: of a stored scale; 16: scales are fp16 numbers.  balanced: the codes in use are the odd ones, as many
    below zero as above, and none is zero: -3, -1, 1, 3 of 2 bits.
    """

    bits: int
    lowest: int
    highest: int
    per: Literal["tensor", "row", "group", "token"]
    group: int | None = None
    overflow_safe: bool = False
    scale_bits: Literal[16, 32] = 32
    balanced: bool = False

    @property
    def signed(self) -> bool:
        return self.lowest < 0

    @property
    def step(self) -> int:
        """From one code in use to the next."""
        return 2 if self.balanced else 1

    @property
    def dynamic(self) -> bool:
        """Whether the scale is a function of the very activation: nothing is calibrated, nothing stored."""
        return self.per == "token"


@dataclass(frozen=True)
class QuantizedTensor:
    """Integer codes and what they stand for: (code - zero_point) * scale, in fp32.

    codes: int8, uint8 where the scheme is not signed, int16 from 9 bits on; shaped as the tensor, one code to a number
    whatever its bits.
    scale: fp32, > 0, also where it is stored in 16 bits; () per tensor, (rows,) per row, (rows, groups) per group, the
    leading dimensions per token.
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
