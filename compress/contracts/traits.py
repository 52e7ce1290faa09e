"""What a stage states of itself, so that whoever runs stages names none of them. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TOKENIZER = "tokenizer"
"""The input that `--tokenizer` names, and what a stage makes that trains one."""

Form = Literal[
    "quantized", "low_rank", "sparse", "shared", "partly_shared", "factorized_embeddings", "static", "drops_tokens"
]  # fmt: skip
"""A property of a model that not every stage can work on. quantized: matrices or tables are integers.  low_rank: some
matrices are products of two.  sparse: some matrices are 2:4 sparse.  shared: layers share parameters.  partly_shared:
they share matrices, and each keeps norms, biases or a residual of its own.  factorized_embeddings: the embedding tables
are narrower than the hidden states.  static: a vector for each token, without layers.  drops_tokens: between its layers
some tokens are left out."""

Start = Literal["input", "random", "checkpoint", "teacher"]
"""What a stage's model starts from. input: the model that it is given.  random: random weights.  checkpoint: one that
the stage names itself.  teacher: the model that teaches it."""


@dataclass(frozen=True)
class Rejection:
    """A form of model that a stage cannot work on. why: the reason.  do: what to do instead."""

    form: Form
    why: str
    do: str


def rejects_quantized(doing: str) -> Rejection:
    """Of a stage that reads float matrices. doing: what it does, such as "cutting it"."""
    return Rejection("quantized", f"the model is quantized already, and {doing} needs float weights", "quantize last")


def rejects_sparse(doing: str, do: str = "sparsify last, and only once") -> Rejection:
    """Of a stage that writes the matrices anew, by which zeros would be lost."""
    return Rejection("sparse", f"the model's matrices are 2:4 sparse, and {doing} would break the pattern", do)


def rejects_low_rank(doing: str, do: str = "factorize last, and only once") -> Rejection:
    """Of a stage that reads whole matrices."""
    return Rejection("low_rank", f"the model has low-rank factors already, and {doing} needs full matrices", do)


def rejects_static(what: str) -> Rejection:
    """Of a stage that works on layers. what: it does, such as "sparsify"."""
    do = "start from a model with layers"
    return Rejection("static", f"a static model has no layers and no attention, and there is nothing to {what}", do)


def rejects_partly_shared(what: str, do: str) -> Rejection:
    """Of a stage that cannot change matrices which layers share in part. what: the clause that says so."""
    return Rejection("partly_shared", f"its layers share matrices and also have their own parameters, {what}", do)


def rejects_dropped_tokens(doing: str) -> Rejection:
    """Of a stage that works on layers whose choice of tokens was made for them. doing: what it does, such as "cutting
    its layers"."""
    why = f"the model drops tokens between its layers, and {doing} would change which"
    return Rejection("drops_tokens", why, "drop tokens after that, and only once")
