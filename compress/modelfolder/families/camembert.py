"""CamemBERT (1911.03894): RoBERTa under the name by which transformers chooses CamemBERT's tokenizer."""

from __future__ import annotations

from compress.modelfolder.families import roberta


class Family(roberta.Family):
    model_type = "camembert"
    classes = "Camembert"
    alias = True
