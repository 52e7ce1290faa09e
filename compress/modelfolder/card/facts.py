"""What a model card says about the model itself."""

from __future__ import annotations

from dataclasses import dataclass

QUESTION_ANSWERING = "question-answering"
"""The kind of the task whose models read a question and a context."""


@dataclass(frozen=True)
class Facts:
    """What the card says about the model itself. stock_class: None when transformers cannot load the folder.
    objection: why it cannot, "its layers differ in shape"; None where it can.

    certificate: whether the folder holds one.  stages: of a cascade, a sentence on each of its models.  sparse:
    matrices that are 2:4 sparse.  quantized: whether matrices or tables are, so that a stock class computes with other
    numbers.  onnx: whether the folder holds a `model.onnx`.  exits: layers behind which the model may answer, which no
    stock class does.
    """

    name: str
    parameters: int
    parameters_without_embeddings: int
    layers: int
    hidden: int
    heads: tuple[str, ...]
    stock_class: str | None
    objection: str | None
    certificate: bool = False
    stages: tuple[str, ...] = ()
    sparse: int = 0
    quantized: bool = False
    onnx: bool = False
    exits: tuple[int, ...] = ()

    @property
    def is_stock(self) -> bool:
        """Whether a class of transformers computes what the figures are of."""
        return self.stock_class is not None and not self.quantized and not self.exits

    @property
    def is_static(self) -> bool:
        """Whether the model is a vector for each token, which transformers has no class for."""
        return self.layers == 0
