"""What sits on an encoder: a frozen description from which a head is built, counted and saved. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from compress.encoder.config import checks
from compress.encoder.config.exits import ExitConfig, count_exit_parameters, read_exits, require_ascending
from compress.errors import UserError

Activation = Literal["gelu", "gelu_new", "relu", "silu"]
HeadKind = Literal[
    "classification",
    "token_classification",
    "question_answering",
    "embedding",
    "masked_lm",
    "sentence_pair",
    "replaced_token",
]
HeadStyle = Literal["bert", "distilbert", "roberta", "electra", "modernbert", "deberta"]
Pooling = Literal["first", "mean", "max", "weighted_mean", "last"]
Problem = Literal["single_label", "multi_label", "regression", "ranking"]

HEAD_NAMES: Mapping[HeadKind, str] = {
    "masked_lm": "mlm",
    "classification": "task",
    "token_classification": "task",
    "question_answering": "task",
    "embedding": "task",
    "sentence_pair": "pair",
    "replaced_token": "rtd",
}
"""The name under which a model keeps each kind of head."""


class HeadInput(Protocol):
    """What the sizes of a head follow from: those of the encoder under it (`EncoderConfig`)."""

    @property
    def vocabulary(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def bias(self) -> bool: ...


@dataclass(frozen=True)
class DenseShape:
    """A Dense module of an embedding head: y = W·x, plus a bias where `bias`, then tanh where `tanh`. width: of y."""

    width: int
    bias: bool = True
    tanh: bool = False

    def __post_init__(self) -> None:
        checks.positive("width", self.width, where="head.denses")
        for name in ("bias", "tanh"):
            checks.flag(name, getattr(self, name), "head.denses")


@dataclass(frozen=True)
class HeadConfig:
    """What sits on the encoder.

    kind: "masked_lm" (dense, activation, norm, the word table as the last matrix, bias), "classification" (one answer
        per sequence), "token_classification" (one per token), "question_answering" (two scores per token: where an
        answer starts and where it ends), "embedding" (the vector of a text, 1908.10084), "sentence_pair" (next
        sentence or sentence order), "replaced_token" (one score per token: whether a generator put it there, ELECTRA,
        2003.10555).
    labels: answers of a classification; 1 for a regression or a ranking, 2 for question answering, the width of an
        embedding.
    problem: "single_label" (one of the labels), "multi_label" (any of them), "regression" (a number), "ranking" (the
        logit of how relevant a document is to a query).
    style: of a task head: "bert" reads the pooler; the others have a dense layer of their own on the first token,
        "distilbert" (1910.01108) with relu, "roberta" (1907.11692) with tanh, "electra" (2003.10555) with gelu,
        "deberta" (2006.03654) too, without dropout before it;
        "modernbert" (2412.13663) has the transform of the masked-LM head, also where it answers every token.
    pooling: what a modernbert classification or an embedding reads: the "first" token or the "mean" of all.
    denses: of an embedding, what its pooled states go through.  normalize: whether its vectors have length 1.
    truncate: of an embedding, how many numbers of these vectors are kept, the first; None: all.
    tied_projection: of a masked-LM head over factorized embeddings: its transform keeps the hidden width, and the
        embeddings' projection, transposed, leads to the word table; else the transform itself goes to that width.
    dropout: None takes the encoder's (a sentence-pair head: none).  feature_norm_eps, activation: of the transform of a
        masked-LM or modernbert head; None takes the encoder's.
    exits: of a classification with one label per text: heads behind earlier layers, which answer first.
    """

    kind: HeadKind
    labels: int = 2
    problem: Problem = "single_label"
    style: HeadStyle = "bert"
    dropout: float | None = None
    feature_norm_eps: float | None = None
    activation: Activation | None = None
    pooling: Pooling = "first"
    tied_projection: bool = False
    denses: tuple[DenseShape, ...] = ()
    normalize: bool = False
    truncate: int | None = None
    exits: tuple[ExitConfig, ...] = ()

    def __post_init__(self) -> None:
        where = "head"
        checks.choice("kind", self.kind, get_args(HeadKind), where)
        checks.choice("problem", self.problem, get_args(Problem), where)
        checks.choice("style", self.style, get_args(HeadStyle), where)
        checks.choice("pooling", self.pooling, get_args(Pooling), where)
        checks.positive("labels", self.labels, where=where)
        if not isinstance(self.tied_projection, bool) or (self.tied_projection and self.kind != "masked_lm"):
            raise UserError("only a masked-LM head has a tied projection", where="head.tied_projection")
        if self.dropout is not None:
            checks.probability("dropout", self.dropout, where)
        if self.feature_norm_eps is not None:
            checks.epsilon("feature_norm_eps", self.feature_norm_eps, where)
        if self.activation is not None:
            checks.choice("activation", self.activation, get_args(Activation), where)
        embeds = self.kind == "embedding"
        if self.pooling == "mean" and not embeds and (self.kind != "classification" or self.style != "modernbert"):
            raise UserError(
                "only a modernbert classification head supports mean pooling", where="head.pooling", do="use first"
            )
        if self.pooling not in ("first", "mean") and not embeds:
            what = f"only an embedding head supports {self.pooling} pooling"
            raise UserError(what, where="head.pooling", do="use first")
        if not embeds and (self.denses or self.normalize or self.truncate is not None):
            raise UserError("only an embedding head has Dense and Normalize modules", where="head.denses")
        if self.truncate is not None:
            checks.positive("truncate", self.truncate, where=where)
            if self.truncate != self.labels:
                raise UserError("a cut vector gives the labels of an embedding head", where="head.truncate")
        if self.denses and self.truncate is None and self.denses[-1].width != self.labels:
            raise UserError("the last Dense module gives the vector of an embedding head", where="head.denses")
        if self.problem in ("regression", "ranking") and self.labels != 1:
            raise UserError(
                f"a {self.problem} head has one output", where="head.labels", why=f"found {self.labels}", do="use 1"
            )
        if self.kind == "sentence_pair" and self.labels != 2:
            raise UserError("a sentence-pair head has two outputs", where="head.labels", why=f"found {self.labels}")
        if self.kind == "question_answering" and self.labels != 2:
            raise UserError(
                "a question-answering head has two outputs, start and end",
                where="head.labels",
                why=f"found {self.labels}",
            )
        if self.exits and (self.kind, self.problem) != ("classification", "single_label"):
            raise UserError("only a classification with one label per text has early exits", where="head.exits")
        require_ascending(self.exits)
        if self.kind != "classification" and self.problem != "single_label":
            raise UserError(f"a {self.kind} head cannot be {self.problem}", where="head.problem", do="use single_label")

    @property
    def name(self) -> str:
        """The key of this head in `Model.heads`."""
        return HEAD_NAMES[self.kind]

    @property
    def per_token(self) -> bool:
        """Whether it answers every token (T, C) rather than every sequence (B, C)."""
        return self.kind in ("token_classification", "question_answering")

    @property
    def only_first(self) -> bool:
        """Whether it reads nothing of the encoder's answer but the first token's vector."""
        return self.kind in ("classification", "sentence_pair", "embedding") and self.pooling == "first"

    @property
    def outputs(self) -> int:
        """Scores for each thing that it answers."""
        return 1 if self.kind == "replaced_token" else self.labels

    @property
    def transforms(self) -> bool:
        """Whether it has a dense layer, an activation and a norm before its last matrix."""
        return self.kind == "masked_lm" or (HEAD_NAMES[self.kind] == "task" and self.style == "modernbert")

    @property
    def needs_pooler(self) -> bool:
        return self.kind == "sentence_pair" or (self.kind == "classification" and self.style == "bert")

    def fit_hidden(self, hidden: int) -> HeadConfig:
        """This head over hidden states of `hidden` dimensions: an embedding without Dense modules has them for its
        vectors."""
        if self.kind != "embedding" or self.denses:
            return self
        return dataclasses.replace(self, labels=hidden, truncate=None)

    def count_parameters(self, config: HeadInput) -> int:
        """Parameters of the head itself; the tied matrix of masked_lm belongs to the encoder."""
        hidden = config.hidden
        if self.kind == "masked_lm":
            width = config.hidden if self.tied_projection else config.width
            return self._count_transform(config, width) + config.vocabulary
        if self.kind == "embedding":
            widths = [hidden, *(dense.width for dense in self.denses)]
            return sum(d.width * (given + d.bias) for d, given in zip(self.denses, widths, strict=False))
        total = hidden * self.outputs + self.outputs + len(self.exits) * count_exit_parameters(hidden, self.outputs)
        if self.transforms:
            total += self._count_transform(config, hidden)
        elif self.kind == "replaced_token" or (self.kind == "classification" and self.style != "bert"):
            total += hidden * hidden + hidden
        return total

    def _count_transform(self, config: HeadInput, width: int) -> int:
        return config.hidden * width + (3 if config.bias else 1) * width

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same head back."""
        values = dataclasses.asdict(self)
        own = () if self.kind == "embedding" else ("denses", "normalize")  # older versions do not know them
        own += () if self.truncate is not None else ("truncate",)
        own += () if self.exits else ("exits",)
        return {name: value for name, value in values.items() if name not in own}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HeadConfig:
        """The inverse of `to_dict`. Raises UserError on unknown or missing keys and on illegal values."""
        checks.check_keys(cls, values, "head")
        read = {"denses": _read_denses(values.get("denses", ())), "exits": read_exits(values.get("exits", ()))}
        return cls(**{**values, **read})


def _read_denses(rows: Any) -> tuple[DenseShape, ...]:
    where = "head.denses"
    if not checks.is_list(rows) or not all(isinstance(row, Mapping) for row in rows):
        raise UserError("denses must be a list of objects", where=where)
    for row in rows:
        checks.check_keys(DenseShape, row, where)
    return tuple(DenseShape(**row) for row in rows)
