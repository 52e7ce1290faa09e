"""Which 8-bit matrices have exact products on every processor.

Without VNNI, the fast int8 kernels of x86 processors (oneDNN, MLAS) multiply unsigned inputs by signed weights, add two
neighbouring products in 16 bits and clip what does not fit (the instruction vpmaddubsw). Weights whose neighbours
(columns 0 and 1, 2 and 3, ...) never reach that limit give the exact sum there too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from compress.contracts import Scheme

MIDDLE = 128
"""Of the codes of a byte: what stands for 0 where signed codes are stored or multiplied as unsigned ones."""
LIMIT = 2**15 - 1
"""The largest sum that 16 bits hold."""
TOP = 255
"""The largest code of an unsigned input."""
PAIR_LIMIT = LIMIT // TOP
"""The most that two neighbouring codes of one sign may add up to: 128."""


def pair_range(x: Tensor) -> Tensor:
    """x (.., K) → (..): the largest absolute sum of two neighbours of one sign; a single number counts by itself."""
    if x.shape[-1] % 2:
        x = torch.nn.functional.pad(x, (0, 1))
    above, below = (part[..., ::2] + part[..., 1::2] for part in (x.clamp_min(0), x.clamp_max(0)))
    return torch.maximum(above.amax(-1), -below.amin(-1))


def row_range(x: Tensor, scheme: Scheme, wanted: Tensor | None = None) -> Tensor:
    """x (.., K) → (..): the range of each row that the codes 0..highest must cover; wanted: another than max|x|.

    Of an overflow-safe scheme so wide that no two neighbouring codes exceed `PAIR_LIMIT`. Rounding adds at most 1 to
    the sum of two codes, hence the 1 below.
    """
    widest = x.abs().amax(-1) if wanted is None else wanted
    if not scheme.overflow_safe or 2 * scheme.highest <= PAIR_LIMIT:
        return widest
    return torch.maximum(widest, pair_range(x) * (scheme.highest / (PAIR_LIMIT - 1)))


def can_overflow(codes: Tensor, top: int = TOP) -> bool:
    """Whether a product with codes (out, in) can exceed 16 bits. top: the largest code of the unsigned input."""
    return bool((pair_range(codes.to(torch.int32)) * top > LIMIT).any())
