"""What rounding leaves of a model's weights: squared error over squared weights, by codes and by what shares a scale.

    python benchmarks/rounding_error.py FOLDER

Every matrix of the layers and the word table, with the scales of the least squared error (`fit_scale`), as the schemes
int3, int2 and their forms per row start from.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from compress.contracts import Scheme
from compress.encoder.integers.fake_quantized import quantizable
from compress.modelfolder.folder import load_model
from compress.quantizers._base import balanced_codes, symmetric
from compress.quantizers._learned import fit_scale, full
from compress.quantizers._rounding import codes_of, numbers_of

GROUP = 32


def schemes(per: str) -> Mapping[str, Scheme]:
    """By the codes in use."""
    group = GROUP if per == "group" else None
    bits = 16 if per == "group" else 32
    found = {}
    for count in (2, 3, 4):
        for made in (symmetric(count, per, group, scale_bits=bits), full(count, per, group, bits)):
            found[f"{count} bits, {made.lowest} to {made.highest}"] = made
        balanced = balanced_codes(count, per, group, bits)
        found[f"{count} bits, odd from {balanced.lowest} to {balanced.highest}"] = balanced
    return found


def error(x: Tensor, scheme: Scheme) -> float:
    """Sum of squared errors of a matrix."""
    scale = fit_scale(x, scheme)
    zero = torch.zeros_like(scale)
    return float((numbers_of(codes_of(x, scale, zero, scheme), scale, zero, scheme) - x).square().sum())


@torch.no_grad()
def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    args = p.parse_args()
    modules = quantizable(load_model(args.model).model)
    names = [n for n in modules if n.startswith("encoder.layers.") or n == "encoder.embeddings.word"]
    weights = [modules[name].get_parameter("weight").detach().float() for name in names]
    whole = sum(float(x.square().sum()) for x in weights)
    print(f"{args.model}: {len(weights)} matrices and tables; squared error in percent of the squared weights\n")
    print(f"| codes | one scale for {GROUP} weights | one scale for a row |\n|---|--:|--:|")
    by_row = schemes("row")
    for codes, scheme in schemes("group").items():
        shares = [100 * sum(error(x, s) for x in weights) / whole for s in (scheme, by_row[codes])]
        print(f"| {codes} | {shares[0]:.1f} % | {shares[1]:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
