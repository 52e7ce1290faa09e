"""XLM-RoBERTa (1911.02116): RoBERTa under the name by which transformers chooses a SentencePiece tokenizer."""

from __future__ import annotations

from compress.modelfolder.families import roberta


class Family(roberta.Family):
    model_type = "xlm-roberta"
    classes = "XLMRoberta"
    alias = True
