"""Losses over the vocabulary, made for T·V of tens of millions: one pass over the logits, the gradient with it.

`log_softmax` and `kl_div` walk a dozen times over (T, V) arrays in fp32 that fit into no cache. Here a block of rows
is widened to fp32, its loss and its gradient are computed while it is in the cache, and only the gradient is kept, in
the precision of the logits. The logits themselves come from one matrix product that all losses of a step share, so
its backward (two more products as large) also runs once, on the sum of their gradients. The teacher's logits are made
a block at a time and never stored. On a GPU where Triton works, a block is one kernel (`_vocabulary_kernels`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from compress.contracts import TopLogits, VocabularyOutput
from compress.errors import UserError
from compress.objectives import _vocabulary_kernels as kernels
from compress.objectives._common import widen

_CACHED_BYTES = 1 << 20  # of one fp32 block: half of a core's second-level cache, where passes over it are cheap
_PRODUCT_ROWS = 256  # of one product with the teacher's table: enough rows to keep the matrix units busy
_DEVICE_ROWS = 2048  # rows of a block on an accelerator: there launches cost more than memory traffic

WideLoss = Callable[[Tensor, int, int], tuple[Tensor, Tensor]]
"""(wide logits (r, V) which it may overwrite, first row, last row + 1) → (losses (r,), gradient (r, V))."""
BlockLoss = Callable[[Tensor, Tensor | None, int, int], Tensor]
"""(logits (r, V), where to write the gradient divided by all rows, first row, last row + 1) → losses (r,)."""


def logits_at(output: VocabularyOutput, rows: Tensor | None) -> Tensor:
    """(R, V) of the shared logits: at the tokens `rows`, or at every token when None."""
    on_gpu = kernels.support(output.features)
    if on_gpu and rows is not None and output.positions is None:
        # A second product of a few rows is faster than to add their gradient to that of all, which is of gigabytes.
        return _compute_padded(dataclasses.replace(output, features=output.features.index_select(0, rows)))
    logits = output.shared_logits(_compute_padded if on_gpu else None)
    if output.positions is not None:
        assert rows is not None, "logits of all tokens are needed, but the model computed only the masked ones"
        return logits
    return logits if rows is None else logits.index_select(0, rows)


def _compute_padded(output: VocabularyOutput) -> Tensor:
    return kernels.padded_logits(_lowered(output))


def cross_entropy(logits: Tensor, labels: Tensor, real: Tensor | None = None) -> Tensor:
    """Mean over rows of −log softmax(logits)[label]; logits (M, V), labels (M,).

    real: (M,) bool: the others count as rows whose loss is 0.
    """

    def launch(z: Tensor, gradient: Tensor | None, first: int, last: int) -> Tensor:
        return kernels.cross_entropy(z, labels[first:last], gradient, 1 / logits.shape[0])

    if kernels.support(logits):
        return _mean_loss(logits, launch, real)

    def block(z: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        at = labels[first:last, None]
        chosen = z.gather(1, at)
        p, log_sum = _softmax(z)
        return (log_sum - chosen)[:, 0], p.scatter_add_(1, at, torch.full_like(chosen, -1.0))

    return _mean_loss(logits, _in_passes(block, logits.shape[0]), real)


def divergence(
    logits: Tensor,
    teacher: VocabularyOutput | TopLogits,
    rows: Tensor | None,
    temperature: float,
    real: Tensor | None = None,
) -> Tensor:
    """T²·KL(softmax(teacher/T) ‖ softmax(student/T)), mean over rows; logits (R, V) of the student.

    rows: (R,) which of the teacher's tokens the student's rows are, None: all that the teacher computed, in order.
    real: (R,) bool: the others count as rows whose loss is 0.
    Of a teacher whose likeliest pieces alone are known the others count as one outcome, see `_of_likeliest`.
    """
    if isinstance(teacher, TopLogits):
        return _of_likeliest(logits, teacher, rows, temperature, real)
    features = teacher.features
    if rows is not None and teacher.positions is None:
        features = features.index_select(0, rows)
    vocabulary = teacher.weight.shape[0]
    _same_vocabulary(logits, features.shape[0], vocabulary)
    selected = dataclasses.replace(teacher, features=features)
    if kernels.support(logits) and kernels.support(features):
        return _mean_loss(logits, _launched(selected, temperature, logits.shape[0]), real)
    theirs = _TeacherRows(selected)

    def block(z: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        t = theirs(first, last)
        if temperature != 1.0:
            z, t = z.mul_(1 / temperature), t.mul_(1 / temperature)
        p, log_sum = _softmax(z)
        q, their_log_sum = _softmax(t)
        rows_kl = t.sub_(z).mul_(q).sum(1, keepdim=True) + log_sum - their_log_sum
        return rows_kl[:, 0] * temperature**2, p.sub_(q).mul_(temperature)

    return _mean_loss(logits, _in_passes(block, logits.shape[0]), real)


def _launched(teacher: VocabularyOutput, temperature: float, rows: int) -> BlockLoss:
    """The block loss of the divergence in one kernel; rows: of all blocks."""
    padded, size = kernels.pad(_lowered(teacher)), teacher.weight.shape[0]

    def block(z: Tensor, gradient: Tensor | None, first: int, last: int) -> Tensor:
        theirs = dataclasses.replace(padded, features=padded.features[first:last]).logits()[:, :size]
        return kernels.divergence(z, theirs, gradient, temperature, 1 / rows)

    return block


def _of_likeliest(
    logits: Tensor, teacher: TopLogits, rows: Tensor | None, temperature: float, real: Tensor | None
) -> Tensor:
    """T²·KL over k + 1 outcomes, the teacher's k likeliest pieces K and "any other", mean over rows.

    With q the teacher's and p the student's probabilities at temperature T, and Q, P what they leave to the others:

        T²·(Σ_K q·log(q/p) + Q·log(Q/P)),  gradient in the student's logits  T·(p − q̃)

    where q̃ is q on K, and on the others Q shared out as the student shares P out: the student learns how much the
    others weigh together, not which of them. Joining outcomes only takes away from a divergence, so this is at most the
    full one, and equal to it where k is the whole vocabulary. Q is not what rounding leaves of 1: the teacher told it.
    """
    if temperature not in teacher.tails:
        known = ", ".join(f"{t:g}" for t in sorted(teacher.tails))
        raise UserError(
            f"the cached teacher outputs are for temperature {known}, not {temperature:g}",
            do="rebuild the cache with this recipe, or cache all logits (cache.top_k: null)",
        )
    ids, top, tail = teacher.ids, widen(teacher.logits), widen(teacher.tails[temperature])
    if rows is not None and teacher.positions is None:
        ids, top, tail = (part.index_select(0, rows) for part in (ids, top, tail))
    _same_vocabulary(logits, ids.shape[0], teacher.vocabulary)
    scaled = torch.cat([top / temperature, tail[:, None]], dim=1)
    known_log_q = scaled.log_softmax(1)

    def block(z: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        at, log_q = ids[first:last], known_log_q[first:last]
        log_q = log_q.to(z.dtype)
        if temperature != 1.0:
            z = z.mul_(1 / temperature)
        p, log_sum = _softmax(z)
        others = p.scatter(1, at, 0.0)
        rest = others.sum(1, keepdim=True)
        tiny = torch.finfo(rest.dtype).tiny
        log_p = torch.cat([z.gather(1, at) - log_sum, rest.clamp_min(tiny).log()], dim=1)
        q = log_q.exp()
        # No teacher's mass on the others, or none to speak of: 0·log 0 is 0.
        terms = torch.where(q > 0, q * (log_q - log_p), 0.0)
        shared_out = others.mul_(q[:, -1:] / rest.clamp_min(tiny)).scatter_(1, at, q[:, :-1])
        return terms.sum(1) * temperature**2, p.sub_(shared_out).mul_(temperature)

    return _mean_loss(logits, _in_passes(block, logits.shape[0]), real)


def _same_vocabulary(logits: Tensor, rows: int, vocabulary: int) -> None:
    if (rows, vocabulary) != tuple(logits.shape):
        raise UserError(
            "teacher and student have different vocabularies",
            why=f"the teacher has {rows} × {vocabulary} logits, the student {logits.shape[0]} × {logits.shape[1]}",
            do="distil between models with the same tokenizer",
        )


def _softmax(z: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(z) (r, V) and logsumexp(z) (r, 1), with one exponential per element.

    The largest probability is at least 1/V, so its logarithm is safe: logsumexp = max z − log max softmax.
    """
    p = torch.softmax(z, dim=1)
    return p, z.amax(1, keepdim=True) - p.amax(1, keepdim=True).log()


class _TeacherRows:
    """Blocks of the teacher's wide logits, the matrix product done for more rows at once than a block has."""

    def __init__(self, output: VocabularyOutput) -> None:
        self.output, self.first, self.last = _lowered(output), 0, 0
        self.rows = _PRODUCT_ROWS if output.features.device.type == "cpu" else _DEVICE_ROWS
        self.logits: Tensor | None = None

    def __call__(self, first: int, last: int) -> Tensor:
        """(last − first, V), a copy that may be overwritten."""
        pieces = []
        while first < last:
            if self.logits is None or not self.first <= first < self.last:
                self._compute(first)
            assert self.logits is not None
            end = min(last, self.last)
            pieces.append(self.logits[first - self.first : end - self.first])
            first = end
        joined = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        widened = widen(joined)
        return widened.clone() if widened is joined else widened

    def _compute(self, first: int) -> None:
        features = self.output.features[first : first + self.rows]
        self.first, self.last = first, first + features.shape[0]
        self.logits = dataclasses.replace(self.output, features=features).logits()


def _lowered(output: VocabularyOutput) -> VocabularyOutput:
    """The same in autocast's precision: cast here once, where autocast would cast the table anew for every block."""
    device = output.features.device.type
    if not torch.is_autocast_enabled(device) or output.weight.dtype == torch.get_autocast_dtype(device):
        return output
    dtype = torch.get_autocast_dtype(device)
    bias = None if output.bias is None else output.bias.to(dtype)
    return dataclasses.replace(output, features=output.features.to(dtype), weight=output.weight.to(dtype), bias=bias)


def _in_passes(loss: WideLoss, rows: int) -> BlockLoss:
    """The block loss of what computes on wide logits; rows: of all blocks."""

    def block(z: Tensor, gradient: Tensor | None, first: int, last: int) -> Tensor:
        piece = widen(z)
        values, slope = loss(piece.clone() if piece.dtype == z.dtype else piece, first, last)
        if gradient is not None:
            gradient.copy_(slope.div_(rows))
        return values

    return block


def _mean_loss(logits: Tensor, block: BlockLoss, real: Tensor | None) -> Tensor:
    value: Tensor = _MeanLoss.apply(logits, block, real)  # pyright: ignore[reportAssignmentType]
    return value


class _MeanLoss(torch.autograd.Function):
    """Mean over the rows of `logits` of what `block` computes, 0 where not `real`; the gradient from the same pass."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, logits: Tensor, block: BlockLoss, real: Tensor | None
    ) -> Tensor:
        rows, vocabulary = logits.shape
        step = _DEVICE_ROWS if logits.device.type != "cpu" else max(1, _CACHED_BYTES // (4 * vocabulary))
        keep = bool(ctx.needs_input_grad[0])  # pyright: ignore[reportAttributeAccessIssue]
        make = kernels.new_gradient if kernels.support(logits) else torch.empty_like
        gradient = make(logits) if keep else None
        total = torch.zeros((), dtype=torch.float64, device=logits.device)
        for first in range(0, rows, step):
            last = min(first + step, rows)
            losses = block(logits[first:last], None if gradient is None else gradient[first:last], first, last)
            losses = losses if real is None else losses * real[first:last]
            total += losses.sum(dtype=torch.float64)
        ctx.gradient, ctx.real = gradient, real  # pyright: ignore[reportAttributeAccessIssue]
        return (total / rows).to(torch.float64 if logits.dtype == torch.float64 else torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradient: Tensor | None = ctx.gradient  # pyright: ignore[reportAttributeAccessIssue]
        if gradient is None:
            raise RuntimeError("backward can be called only once on a vocabulary loss")
        ctx.gradient = None  # pyright: ignore[reportAttributeAccessIssue]
        real: Tensor | None = ctx.real  # pyright: ignore[reportAttributeAccessIssue]
        if real is None and kernels.support(gradient):
            kernels.scale_(gradient, grad)
        else:
            gradient.mul_(grad if real is None else grad * real[:, None])
        return gradient, None, None
