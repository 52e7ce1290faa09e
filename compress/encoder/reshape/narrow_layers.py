"""One layer made narrower: its heads, the channels of a head, its feed-forward neurons."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from compress.encoder.config.encoder import EncoderConfig, LayerShape
from compress.encoder.modules.layers import Attention, EncoderLayer, FeedForward
from compress.encoder.reshape.basis import Basis, copy_plain, draw_random_basis, space_evenly
from compress.encoder.reshape.narrow_method import Narrowing


def layer(
    source: EncoderLayer, shape: LayerShape, how: Narrowing, stream: Basis, config: EncoderConfig
) -> dict[str, Tensor]:
    """name → tensor of a layer of this shape that reads and writes the narrow stream. config: of the wider model."""
    state = {f"attention.{name}": x for name, x in _attention(source.attention, shape, how, stream, config).items()}
    narrowed = _feed_forward(source.feed_forward, shape.feed_forward, how, stream)
    state |= {f"feed_forward.{name}": x for name, x in narrowed.items()}
    for name in ("attention_norm", "output_norm"):
        norm = getattr(source, name)
        if isinstance(norm, nn.LayerNorm):
            state |= {f"{name}.{part}": x for part, x in how.norm(stream, norm).items()}
    return state


# --- attention --------------------------------------------------------------------------------------------------


def _attention(
    source: Attention, shape: LayerShape, how: Narrowing, stream: Basis, config: EncoderConfig
) -> dict[str, Tensor]:
    rotary, bias = config.positions == "rotary", config.relative_bias
    heads, old, new = source.heads, source.head_width, shape.head_width
    query, key, value = (_per_head(part, heads) for part in (source.query, source.key, source.value))
    output = copy_plain(source.output.weight).unflatten(1, (heads, old)).transpose(0, 1)  # (H, D, K)
    known, context = how.input_of(source.query), how.input_of(source.output)
    keep = space_evenly(heads, shape.heads)  # the same of all layers, where they share a table of position biases
    if context is not None and shape.heads < heads and (bias is None or not bias.shared):
        keep = _largest(_written(output, context), shape.heads)
    made = [_head(query[h], key[h], value[h], output[h], new, how, rotary, known) for h in keep.tolist()]
    q, k, v, o = (torch.stack(part) for part in zip(*made, strict=True))
    state: dict[str, Tensor] = {}
    for name, part in (("query", q), ("key", k), ("value", v)):
        state[f"{name}.weight"] = stream.read(part[..., :-1].flatten(0, 1))
        if source.query.bias is not None:
            state[f"{name}.bias"] = part[..., -1].flatten()
    weight = o.transpose(0, 1).flatten(1)
    added = None if source.output.bias is None else copy_plain(source.output.bias)
    if context is not None and (shape.heads, new) != (heads, old):
        weight, added = _refit_output(source, v, value, keep, how, weight, added)
    state["output.weight"] = stream.write(weight)
    if source.relative is not None:
        state["relative.weight"] = copy_plain(source.relative.weight)[:, keep]
    return state if added is None else state | {"output.bias": stream.write(added)}


def _per_head(part: nn.Linear, heads: int) -> Tensor:
    """(H, K, D+1): the weights, the bias as a last column."""
    weight = copy_plain(part.weight)
    bias = torch.zeros(len(weight)).double() if part.bias is None else copy_plain(part.bias)
    return torch.cat([weight, bias[:, None]], 1).unflatten(0, (heads, -1))


def _written(output: Tensor, context: Tensor) -> Tensor:
    """(H,) mean square of what each head writes. output: (H, D, K).  context: (H·K+1, ..) second moments."""
    heads, _, width = output.shape
    blocks = context[:-1, :-1].unflatten(0, (heads, width)).unflatten(2, (heads, width))
    return torch.stack([(o @ blocks[h, :, h] @ o.T).trace() for h, o in enumerate(output)])


def _largest(size: Tensor, count: int) -> Tensor:
    """(count,) places of the largest, ascending."""
    return size.argsort(descending=True, stable=True)[:count].sort().values


def _head(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, new: int, how: Narrowing, rotary: bool, known: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v (K, D+1) and o (D, K) of one head with `new` channels. known: second moments of its input."""
    old = len(q)
    if old == new:
        return q, k, v, o
    pick = space_evenly(old, new)
    if how.method == "selection":
        turned = _pairs(old, new) if rotary else pick
        return q[turned], k[turned], v[pick], o[:, pick]
    # Scores are divided by the root of the head's width, which has become smaller.
    scale = (new / old) ** 0.25
    if rotary:
        pairs = _pairs(old, new)
        q, k = q[pairs], k[pairs]
    if how.method == "projection":
        turn = draw_random_basis(old, new, how.generator).matrix
        if not rotary:
            # Random channels keep new/old of a product in expectation.
            q, k = (turn.T @ x * scale * (old / new) ** 0.5 for x in (q, k))
        return q, k, turn.T @ v, o @ turn
    assert known is not None
    root = _root(known)
    if not rotary:
        q, k = _cut_scores(q, k, root, new, scale)
    return q, k, *_cut_values(v, o, root, new)


def _pairs(old: int, new: int) -> Tensor:
    """Channels of a head that rotary positions turn in pairs (i, i + K/2): evenly spaced pairs turn at nearly the
    angles that a narrower head gives its own."""
    half = space_evenly(old // 2, new // 2)
    return torch.cat([half, half + old // 2])


def _root(second: Tensor) -> Tensor:
    """R with R Rᵀ = second."""
    values, vectors = torch.linalg.eigh(second)
    return vectors * values.clamp_min(0).sqrt()


def _cut_scores(q: Tensor, k: Tensor, root: Tensor, new: int, scale: float) -> tuple[Tensor, Tensor]:
    """(K', D+1) each, with the best scores qᵀk of that rank on inputs x = root·z, singular values shared evenly."""
    left, right = (torch.linalg.qr((x @ root).T).R for x in (q, k))
    u, s, vh = torch.linalg.svd(left @ right.T)
    inverse = _inverse_root(s[:new])[:, None] * scale
    return inverse * (vh[:new] @ right) @ q, inverse * (u[:, :new].T @ left) @ k


def _cut_values(v: Tensor, o: Tensor, root: Tensor, new: int) -> tuple[Tensor, Tensor]:
    """(K', D+1) and (D, K') with the best product o·v of that rank on inputs x = root·z."""
    left, right = torch.linalg.qr(o).R, torch.linalg.qr((v @ root).T).R
    u, s, vh = torch.linalg.svd(left @ right.T)
    inverse = _inverse_root(s[:new])
    return inverse[:, None] * (u[:, :new].T @ left) @ v, o @ (right.T @ vh[:new].T) * inverse


def _inverse_root(values: Tensor) -> Tensor:
    """1/√s, and 0 where a direction carries nothing."""
    tiny = torch.finfo(values.dtype).tiny
    there = values > values.max() * 1e-12
    return torch.where(there, values.clamp_min(tiny).rsqrt(), 0.0)


def _refit_output(
    source: Attention, v: Tensor, value: Tensor, keep: Tensor, how: Narrowing, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The output matrix from the kept and cut heads' contexts, fitted to what all heads wrote.

    v: (H', K', D+1) the new values, value: (H, K, D+1) the old; each new one is a combination of the old ones of its
    head, and so is its context, a mean of values.
    """
    old, new = source.head_width, v.shape[1]
    kept = torch.zeros(source.heads * old, len(keep) * new, dtype=torch.float64)
    for place, head in enumerate(keep.tolist()):
        # Channels that say the same leave the solution open. lstsq's pivoted QR decides that by rounding, and now and
        # then wrongly on several threads; singular values with a bound do not.
        turned = torch.linalg.pinv(value[head].T, rtol=1e-9) @ v[place].T  # (K, K')
        kept[head * old : (head + 1) * old, place * new : (place + 1) * new] = turned
    return how.refit(source.output, kept, weight, bias)


# --- the feed-forward part --------------------------------------------------------------------------------------


def _feed_forward(source: FeedForward, width: int, how: Narrowing, stream: Basis) -> dict[str, Tensor]:
    up, down = copy_plain(source.up.weight), copy_plain(source.down.weight)
    bias = None if source.down.bias is None else copy_plain(source.down.bias)
    old = down.shape[1]
    keep, second = space_evenly(old, width), how.input_of(source.down)
    if width < old and second is not None:
        keep = _largest(second.diagonal()[:-1] * down.square().sum(0), width)
        kept = torch.eye(old, dtype=torch.float64)[:, keep]
        weight, bias = how.refit(source.down, kept, down[:, keep], bias)
    else:
        weight = down[:, keep]
    rows = torch.cat([keep, keep + old]) if source.gated else keep
    state = {"up.weight": stream.read(up[rows]), "down.weight": stream.write(weight)}
    if source.up.bias is not None:
        state["up.bias"] = copy_plain(source.up.bias)[rows]
    return state if bias is None else state | {"down.bias": stream.write(bias)}
