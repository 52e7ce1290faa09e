"""The answers that transformers itself gives with a folder, to hold ours against."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import torch

from compress.contracts import Batch
from compress.modelfolder.family import stock_heads
from compress.modelfolder.folder import LoadedModel
from compress.onnx.check import Answer


def stock_answer(folder: Path, loaded: LoadedModel) -> Answer:
    """What the class that config.json names answers, packed as our batches are: logits of the task head, or the last
    hidden states where there is none. ImportError without transformers. No code of the folder is run."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    task = "task" in stock_heads(loaded.heads)
    # A folder may name several classes; transformers itself takes the first.
    name, *_ = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False).architectures or ("AutoModel",)
    kind = getattr(transformers, name) if task else transformers.AutoModel
    model = kind.from_pretrained(folder, trust_remote_code=False, use_safetensors=True).eval()
    per_token = task and loaded.heads["task"].kind in ("token_classification", "question_answering")

    def answer(batch: Batch) -> np.ndarray:
        ends = batch.cu_seqlens.tolist()
        rows = []
        for begin, end in itertools.pairwise(ends):
            given = {"input_ids": batch.input_ids[begin:end][None]}
            if loaded.config.segments > 1:
                given["token_type_ids"] = batch.segment_ids[begin:end][None]
            with torch.inference_mode():
                output = model(**given)
            if not task:
                rows.append(output.last_hidden_state[0])
            elif per_token and hasattr(output, "start_logits"):
                rows.append(torch.stack([output.start_logits[0], output.end_logits[0]], -1))
            else:
                rows.append(output.logits[0] if per_token else output.logits)
        return torch.cat(rows).float().numpy()

    return answer
