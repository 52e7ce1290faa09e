"""What sits on an encoder: vocabulary, task and sentence-pair heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compress.contracts import VocabularyOutput
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.integers.fake_quantized import compute_weight
from compress.encoder.modules.dropout import Dropout
from compress.encoder.modules.layers import activation, layer_norm, linear

Activate = Callable[[Tensor], Tensor]


def _transform(config: EncoderConfig, head: HeadConfig, width: int) -> tuple[nn.Linear, Activate, nn.LayerNorm]:
    """Dense, activation and norm: D → width."""
    eps = config.norm_eps if head.feature_norm_eps is None else head.feature_norm_eps
    norm = layer_norm(width, eps, config.bias)
    return linear(config.hidden, width, config.bias), activation(head.activation or config.activation), norm


class MaskedLMHead(nn.Module):
    """Dense → activation → norm; then the word table (given at call time, so it is one tensor) and a bias.

    With `tied_projection` the transform keeps the hidden width, and the embeddings' projection stands between it and
    the table, transposed, so that the logits are those of the product of both.
    """

    def __init__(self, config: EncoderConfig, head: HeadConfig) -> None:
        super().__init__()
        self.tied_projection = head.tied_projection and config.width != config.hidden
        width = config.hidden if self.tied_projection else config.width
        self.dense, self.act, self.norm = _transform(config, head, width)
        self.bias = nn.Parameter(torch.empty(config.vocabulary))

    def forward(
        self, hidden: Tensor, table: Tensor, positions: Tensor | None, projection: nn.Linear | None = None
    ) -> VocabularyOutput:
        """hidden (.., D), table (V, E) → features (M, E) at `positions`, or (.., E) everywhere when None.

        projection: E → D, the embeddings' own.
        """
        if positions is not None:
            hidden = hidden.index_select(0, positions)
        features = self.norm(self.act(self.dense(hidden)))
        if self.tied_projection:
            assert projection is not None
            features = F.linear(features, compute_weight(projection).T)
        return VocabularyOutput(features, table, self.bias, positions)


class SequenceHead(Protocol):
    """first (B, D): the first token.  pooled (B, D): the pooler's output, where the model has one.  → (B, C)."""

    def __call__(self, first: Tensor, pooled: Tensor | None) -> Tensor: ...


class PooledHead(nn.Module):
    """Dropout and a linear layer on the pooler's output, as BERT's classification and next-sentence heads."""

    def __init__(self, config: EncoderConfig, head: HeadConfig) -> None:
        super().__init__()
        # BERT's next-sentence head has no dropout of its own; ALBERT's sentence-order head has.
        otherwise = config.dropout if head.kind == "classification" else 0.0
        self.dropout = Dropout(otherwise if head.dropout is None else head.dropout)
        self.classifier = linear(config.hidden, head.labels)

    def forward(self, first: Tensor, pooled: Tensor | None) -> Tensor:
        assert pooled is not None
        return self.classifier(self.dropout(pooled))


class FirstTokenHead(nn.Module):
    """Dense → relu → dropout → linear on the first token, as DistilBERT's classification head."""

    def __init__(self, config: EncoderConfig, head: HeadConfig) -> None:
        super().__init__()
        self.pre_classifier = linear(config.hidden, config.hidden)
        self.dropout = Dropout(config.dropout if head.dropout is None else head.dropout)
        self.classifier = linear(config.hidden, head.labels)

    def forward(self, first: Tensor, pooled: Tensor | None) -> Tensor:
        return self.classifier(self.dropout(F.relu(self.pre_classifier(first))))


class DenseHead(nn.Module):
    """Dropout → dense → tanh or gelu → dropout → linear on the first token: RoBERTa's classification head has tanh,
    ELECTRA's and DeBERTa's gelu, whatever the encoder's activation is. DeBERTa's has no dropout before the dense
    layer."""

    def __init__(self, config: EncoderConfig, head: HeadConfig) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout if head.dropout is None else head.dropout)
        self.drops_first = head.style != "deberta"
        self.dense = linear(config.hidden, config.hidden)
        self.act = torch.tanh if head.style == "roberta" else F.gelu
        self.classifier = linear(config.hidden, head.labels)

    def forward(self, first: Tensor, pooled: Tensor | None) -> Tensor:
        read = self.dropout(first) if self.drops_first else first
        return self.classifier(self.dropout(self.act(self.dense(read))))


class TransformedHead(nn.Module):
    """Dense → activation → norm → dropout → linear, on what stands for a sequence or on every token (2412.13663)."""

    def __init__(self, config: EncoderConfig, head: HeadConfig) -> None:
        super().__init__()
        self.dense, self.act, self.norm = _transform(config, head, config.hidden)
        self.dropout = Dropout(config.dropout if head.dropout is None else head.dropout)
        self.classifier = linear(config.hidden, head.labels)

    def forward(self, hidden: Tensor, pooled: Tensor | None = None) -> Tensor:
        """hidden (.., D) → (.., C)."""
        return self.classifier(self.dropout(self.norm(self.act(self.dense(hidden)))))


class ReplacedTokenHead(nn.Module):
    """Dense → the encoder's activation → one score per token: whether the token was replaced (ELECTRA, 2003.10555)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = linear(config.hidden, config.hidden)
        self.act = activation(config.activation)
        self.classifier = linear(config.hidden, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (.., D) → (..)."""
        return self.classifier(self.act(self.dense(hidden))).squeeze(-1)


class TokenHead(nn.Module):
    """Dropout and a linear layer on every token, as the token-classification and question-answering heads."""

    def __init__(self, config: EncoderConfig, head: HeadConfig) -> None:
        super().__init__()
        # BERT's question-answering head has no dropout of its own.
        own = 0.0 if head.kind == "question_answering" else config.dropout
        self.dropout = Dropout(own if head.dropout is None else head.dropout)
        self.classifier = linear(config.hidden, head.labels)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (.., D) → (.., C)."""
        return self.classifier(self.dropout(hidden))


class EmbeddingHead(nn.Module):
    """The vector of a text (1908.10084): its pooled states through each Dense module, then to length 1 and cut, if the
    head says so."""

    def __init__(self, config: EncoderConfig, head: HeadConfig) -> None:
        super().__init__()
        widths = [config.hidden, *(dense.width for dense in head.denses)]
        self.denses = nn.ModuleList(
            linear(given, dense.width, dense.bias) for given, dense in zip(widths, head.denses, strict=False)
        )
        self.tanh = tuple(dense.tanh for dense in head.denses)
        self.normalize, self.truncate = head.normalize, head.truncate

    def forward(self, read: Tensor, pooled: Tensor | None = None) -> Tensor:
        """read (B, D) → (B, width)."""
        for dense, tanh in zip(self.denses, self.tanh, strict=True):
            read = torch.tanh(dense(read)) if tanh else dense(read)
        return (F.normalize(read, dim=-1) if self.normalize else read)[..., : self.truncate]


Head = (
    MaskedLMHead
    | PooledHead
    | FirstTokenHead
    | DenseHead
    | TransformedHead
    | TokenHead
    | ReplacedTokenHead
    | EmbeddingHead
)


def build_head(config: EncoderConfig, head: HeadConfig) -> Head:
    """The head that `head` describes."""
    if head.kind == "masked_lm":
        return MaskedLMHead(config, head)
    if head.kind == "embedding":
        return EmbeddingHead(config, head)
    if head.kind == "replaced_token":
        return ReplacedTokenHead(config)
    if head.transforms:
        return TransformedHead(config, head)
    if head.per_token:
        return TokenHead(config, head)
    if head.kind == "sentence_pair" or head.style == "bert":
        return PooledHead(config, head)
    return FirstTokenHead(config, head) if head.style == "distilbert" else DenseHead(config, head)


__all__ = [
    "DenseHead",
    "EmbeddingHead",
    "FirstTokenHead",
    "MaskedLMHead",
    "PooledHead",
    "ReplacedTokenHead",
    "SequenceHead",
    "TokenHead",
    "TransformedHead",
    "build_head",
]
