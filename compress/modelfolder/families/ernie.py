"""ERNIE (1907.12412, 2107.02137) as transformers writes it: BERT under other names, with embeddings of the pretraining
task that are added to every token."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.modelfolder.families import bert
from compress.modelfolder.family import Description, Shapes, list_decoder_copies
from compress.modelfolder.fields import Fields

BODY = "ernie."
COPIES = list_decoder_copies("cls.predictions.", BODY)
TASKS = f"{BODY}embeddings.task_type_embeddings.weight"


class Family(bert.Family):
    """Only the first task is read, the one that transformers takes where `task_type_ids` are not given. Its vector
    moves into the segment embeddings, so what is written has no table of tasks and the same outputs."""

    model_type = "ernie"
    classes = "Ernie"
    body = BODY
    copies = COPIES
    alias = True

    def describe(self, fields: Fields, shapes: Shapes) -> Description:
        found = super().describe(fields, shapes)
        if not fields.flag("use_task_id", False):
            return dataclasses.replace(found, ignored=found.ignored | {TASKS})
        return dataclasses.replace(found, first_rows={"encoder.embeddings.segment.weight": TASKS})

    def stock_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        return super().stock_values(config, heads) | {"use_task_id": False}
