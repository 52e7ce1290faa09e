"""How long a pass of an encoder should take on a GPU: the larger of what its kernels and what their launches cost.

Arithmetic, not a measurement. A kernel takes what the slower of its products and its memory traffic takes at the
device's ceilings; the host launches one kernel after the other. bf16 throughout: 2 bytes a number.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ceilings:
    """flops: of bf16 products, a second.  bytes: read and written, a second.  launch: seconds of the host a kernel."""

    flops: float
    bytes: float
    launch: float


H100 = Ceilings(flops=0.8 * 989e12, bytes=0.9 * 3.35e12, launch=6e-6)
"""Assumed where no GPU was measured: 80 % and 90 % of the data sheet's peaks (H100 SXM, dense bf16), 6 µs a launch."""


@dataclass(frozen=True)
class Work:
    """flops: a multiply-add counts as two.  bytes: read and written.  kernels: launches."""

    flops: float = 0.0
    bytes: float = 0.0
    kernels: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes, self.kernels + other.kernels)

    def times(self, flops: float, bytes_: float, kernels: float) -> Work:
        """Each by its own factor."""
        return Work(self.flops * flops, self.bytes * bytes_, self.kernels * kernels)


@dataclass(frozen=True)
class Shape:
    """layers, hidden, inner: of the encoder; heads: of its attention.  vocabulary: rows of its table."""

    layers: int
    hidden: int
    inner: int
    heads: int
    vocabulary: int

    @property
    def layer_weights(self) -> int:
        """Numbers in the matrices of one layer."""
        return 4 * self.hidden**2 + 2 * self.hidden * self.inner

    @property
    def weights(self) -> int:
        """Numbers in all matrices and the word table."""
        return self.layers * self.layer_weights + self.vocabulary * self.hidden


@dataclass(frozen=True)
class Prediction:
    """Milliseconds of the device and of the host, which work side by side.  flops: of the products."""

    device_ms: float
    host_ms: float
    flops: float

    @property
    def ms(self) -> float:
        """Of one call."""
        return max(self.device_ms, self.host_ms)


LAYER_KERNELS, OTHER_KERNELS = 10, 10
"""Launches at inference, of a layer and beside the layers; counted on the simulated device (tests/simcuda)."""
FUSED = 2
"""Launches of a layer less, where residual and norm are one kernel."""


def count_forward(shape: Shape, tokens: int, length: float, *, fused: bool = True) -> Work:
    """One pass. length: tokens of a sequence, their mean.  fused: whether residual and norm are one kernel."""
    d, f = shape.hidden, shape.inner
    flops = tokens * shape.layers * (2 * shape.layer_weights + 4 * length * d)
    # Numbers that a token reads and writes: 6 d for three products, 4 d attention, 2 d the product after it, twice 3 d
    # (or 5 d) for residual and norm, d + f and f + d around 2 f of the activation.
    traffic = tokens * shape.layers * ((20 if fused else 24) * d + 4 * f)
    kernels = (LAYER_KERNELS - FUSED * fused) * shape.layers + OTHER_KERNELS
    return Work(flops, 2.0 * (traffic + shape.layers * shape.layer_weights), kernels)


def count_training(
    teacher: Shape, student: Shape, tokens: int, length: float, *, masked: int = 0, on_words: bool = False,
    maps: bool = False, kernels: int, fused: bool = True,
) -> Work:  # fmt: skip
    """One optimizer step of distillation. on_words: both give logits of the vocabulary at every token.  masked: tokens
    whose words are predicted.  maps: the attention scores of mapped layers are compared.  kernels: launches of it.
    fused: as in `count_forward`."""
    work = count_forward(teacher, tokens, length, fused=fused)
    # Backward makes two products of each, and reads what forward wrote.
    work += count_forward(student, tokens, length, fused=fused).times(3, 3, 1)
    # Weights: cast for forward and backward (6 bytes each), gradients (8), AdamW reads and writes 7 numbers of 4 bytes.
    work += Work(bytes=student.weights * (2 * 6 + 8 + 28.0))
    if on_words:
        table = 2.0 * tokens * student.vocabulary * student.hidden
        # Logits of both are written and read once, the gradient written, scaled, and read by two products: 9 numbers.
        work += Work(4 * table, 2.0 * tokens * student.vocabulary * 9)
    if on_words and masked:
        # The gradient of the masked rows is put into one of all rows, and both are added.
        work += Work(bytes=2.0 * tokens * student.vocabulary * 4)
    if masked:
        work += Work(6.0 * masked * student.vocabulary * student.hidden, 4.0 * masked * student.vocabulary * 4)
    if maps:
        pairs = tokens * length * (teacher.heads * teacher.layers + 3 * student.heads * student.layers)
        work += Work(bytes=4.0 * pairs * 4)
    return Work(work.flops, work.bytes, kernels)


def predict(work: Work, ceilings: Ceilings) -> Prediction:
    """Products and memory traffic are in different kernels, so that their times add up."""
    device = work.flops / ceilings.flops + work.bytes / ceilings.bytes
    return Prediction(1e3 * device, 1e3 * work.kernels * ceilings.launch, work.flops)
