"""Families × tasks: each cell encodes with its own tokenizer, learns, is saved as the class of transformers that
computes it, and answers as that class does.

The checkpoints are random and tiny, the tokenizers trained on the embedded texts, the tasks the embedded ones.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import foreign_tokenizers
import numpy as np
import pytest
import torch
from test_families_verbs import FAMILIES

from compress.contracts import Needs
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.reading.sources import open_table
from compress.data.tables.table import Table
from compress.data.tasks import task_of
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import HeadConfig
from compress.modelfolder.folder import FolderMeta, inspect, load_model, save_model
from compress.objectives.hard_labels import Objective as HardLabels
from compress.predict.predictor import Predictor

pytestmark = pytest.mark.thorough

# kind of task → (embedded data set, class of transformers)
TASKS = {
    "classification": ("opinions", "ForSequenceClassification"),
    "pair-classification": ("opinions-pairs", "ForSequenceClassification"),
    "multi-label": ("opinions-claims", "ForSequenceClassification"),
    "regression": ("opinions-similarity", "ForSequenceClassification"),
    "token-classification": ("opinions-tags", "ForTokenClassification"),
    "question-answering": ("opinions-qa", "ForQuestionAnswering"),
}
WITHOUT = {("gte", "question-answering"), ("longformer", "question-answering"), ("nomic_bert", "question-answering")}
"""No class of transformers computes these."""
LENGTH = 64
DROPOUT = 0.3


@cache
def table_of(kind: str) -> Table:
    return open_table(TASKS[kind][0], task=kind, limit=12)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A masked-LM folder of each family, as transformers and its tokenizer's author leave it."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    texts = [text for texts, _ in table_of("classification").split("train").slices() for text in texts]
    made = {}
    for family, (classes, values) in FAMILIES.items():
        if not hasattr(transformers, f"{classes}Config"):
            continue
        files = foreign_tokenizers.of_family(family, texts)
        tokenizer = Tokenizer(files)
        config = getattr(transformers, f"{classes}Config")(
            **values, vocab_size=tokenizer.vocabulary_size, pad_token_id=tokenizer.pad_id, initializer_range=0.2
        )
        torch.manual_seed(3)
        folder = tmp_path_factory.mktemp(family)
        getattr(transformers, f"{classes}ForMaskedLM")(config).save_pretrained(folder)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        made[family] = folder
    return made


@pytest.mark.parametrize(("family", "kind"), [(f, k) for f in FAMILIES for k in TASKS if (f, k) not in WITHOUT])
def test_a_family_does_a_task(family: str, kind: str, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    if family not in checkpoints:
        pytest.skip("this version of transformers does not have the family")
    table, task = table_of(kind), task_of(kind)
    names, info = list(table.label_names), inspect(checkpoints[family])
    head = HeadConfig(task.head[0], labels=task.count_outputs(names), problem=task.head[1])
    loaded = load_model(info.path, keep=(), new_heads={"task": info.new_head(head)}, dropout=DROPOUT)
    tokenizer = Tokenizer(loaded.tokenizer_files)
    train = task.encode(tokenizer, table.split("train"), max_length=LENGTH)
    optimizer = torch.optim.SGD(loaded.model.parameters(), lr=0.01)
    for batch in evaluation_batches(train, 512):
        loss = HardLabels()(loaded.model(batch, Needs(logits=True)), None, batch)
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in loaded.model.heads.parameters())
        optimizer.step()
        optimizer.zero_grad()

    meta = FolderMeta(family=family, task=kind, label_names=tuple(names))
    folder = save_model(tmp_path / "tuned", loaded.model, tokenizer_files=tokenizer.files(), meta=meta)
    stock = FAMILIES[family][0] + TASKS[kind][1]
    assert (inspect(folder).family, inspect(folder).stock_class) == (family, stock)
    predictor = Predictor(folder)
    rows = table.split("validation")
    examples = predictor.encode_rows(rows, max_length=LENGTH)
    logits = predictor.logits(examples)
    scored = task.score(logits, names, examples, rows)
    assert set(scored.metrics) <= set(task.choose_metrics(names))
    _as_transformers(folder, stock, family, examples, logits, per_token=head.per_token)


def _as_transformers(folder: Path, stock: str, family: str, examples: Any, logits: np.ndarray, per_token: bool) -> None:
    """The folder in the class that it names, row by row."""
    import transformers

    model = getattr(transformers, stock).from_pretrained(folder).eval()
    drops = {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)}
    assert drops - ({0} if family == "deberta-v2" else set()) == {DROPOUT}  # its pooler has one of its own
    takes_segments = family in ("albert", "bert", "electra", "ernie", "gte", "nomic_bert")
    for row in range(len(examples)):
        span = slice(int(examples.offsets[row]), int(examples.offsets[row + 1]))
        inputs = {"input_ids": torch.from_numpy(examples.ids[span].astype(np.int64))[None]}
        if takes_segments:
            inputs["token_type_ids"] = torch.from_numpy(examples.segments[span].astype(np.int64))[None]
        with torch.no_grad():
            found = model(**inputs, attention_mask=torch.ones_like(inputs["input_ids"]))
        if "start_logits" in found:
            wanted = torch.stack([found.start_logits[0], found.end_logits[0]], -1)
        else:
            wanted = found.logits[0]
        np.testing.assert_allclose(logits[span] if per_token else logits[row], wanted.numpy(), atol=1e-5)
