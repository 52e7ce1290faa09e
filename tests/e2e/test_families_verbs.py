"""Every family through the real commands: fine-tuned, distilled, evaluated, asked; at toy scale.

The checkpoint is one that transformers wrote, random, with a tokenizer of the family's kind trained on the toy data.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import e2e_toy as toy
import foreign_tokenizers
import pytest
from e2e_toy import Cli
from long_text import check_in_transformers, check_limits
from stock_classes import config_class

from compress.data.text.tokenizer import Tokenizer
from compress.modelfolder.folder import inspect, load_model, save_model

pytestmark = pytest.mark.thorough

SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 66,
}
DISTILBERT = {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 64}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": ("Albert", {**SHAPE, "embedding_size": 8, "num_hidden_groups": 1}),
    "bert": ("Bert", SHAPE),
    "deberta-v2": (
        "DebertaV2",
        {
            **SHAPE,
            "relative_attention": True,
            "position_biased_input": False,
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
            "position_buckets": 16,
            "norm_rel_ebd": "layer_norm",
        },
    ),
    "distilbert": ("DistilBert", DISTILBERT),
    "electra": ("Electra", {**SHAPE, "embedding_size": 8}),
    "ernie": ("Ernie", {**SHAPE, "use_task_id": True}),
    "gte": ("Gte", SHAPE),
    "longformer": ("Longformer", {**SHAPE, "type_vocab_size": 1, "attention_window": 8}),
    "modernbert": ("ModernBert", {**SHAPE, "local_attention": 8}),
    "mpnet": ("MPNet", SHAPE),
    "nomic_bert": ("NomicBert", SHAPE),
    "roberta": ("Roberta", {**SHAPE, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", {**SHAPE, "type_vocab_size": 1}),
}
EXPORTED = ("albert", "bert", "modernbert", "roberta")
"""Families that are also evaluated, cut in width and exported: of each kind of tokenizer and of positions one."""
HOLDERS = {"distilbert": "transformer"}  # of the layers, in transformers; others: encoder
FINETUNE = f"""
extends: finetune
description: fine-tune a toy
data: {{max_length: 32, limit: 16}}
{toy.QUICK}
stages:
  - kind: finetune
    training: {{steps: 4, batch_rows: 8, learning_rate: 1e-3}}
"""


BOTH = f"""
extends: smoke
description: the corpus, then the task, on a toy
data: {{max_length: 24, limit: 16}}
corpus: {{max_length: 24}}
{toy.QUICK}
stages:
  - kind: distill
    level: general
    student: {{layers: [0, 2]}}
    objectives: [{{kind: soft_targets, on: vocabulary}}, {{kind: masked_lm}}, {{kind: cosine_hidden}}]
    training: {{steps: 2, batch_rows: 8, learning_rate: 1e-3}}
  - kind: distill
    level: task_specific
    objectives: [{{kind: soft_targets, on: task}}]
    training: {{steps: 2, batch_rows: 8, learning_rate: 1e-3}}
"""


@pytest.fixture
def checkpoint(work: Path, request: pytest.FixtureRequest) -> Path:
    """A masked-LM folder of the family, as transformers and its tokenizer's author leave it."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    family = request.param
    texts = [row["text"] for rows in toy.opinions().values() for row in rows]
    files = foreign_tokenizers.of_family(family, texts)
    tokenizer = Tokenizer(files)
    classes, values = FAMILIES[family]
    config = config_class(transformers, classes)(
        **values, vocab_size=tokenizer.vocabulary_size, pad_token_id=tokenizer.pad_id
    )
    folder = work / family
    getattr(transformers, f"{classes}ForMaskedLM")(config).save_pretrained(folder)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (work / "finetune.yaml").write_text(FINETUNE, encoding="utf-8")
    return folder


@pytest.mark.parametrize(("checkpoint", "family"), [(f, f) for f in FAMILIES], indirect=["checkpoint"], ids=FAMILIES)
def test_from_a_foreign_checkpoint_to_a_student_of_its_family(checkpoint: Path, family: str, compress: Cli) -> None:
    done = compress(
        "finetune", "--recipe", "./finetune.yaml", "--model", checkpoint, "--data", "data", "--output", "runs/fine",
        "--threads", "1",
    )  # fmt: skip
    assert done.code == 0, done.err
    tuned = inspect("runs/fine/model")
    classes = FAMILIES[family][0]
    assert (tuned.family, tuned.stock_class) == (family, f"{classes}ForSequenceClassification")

    done = compress(
        "distill", "--recipe", "./task.yaml", "--teacher", "runs/fine/model", "--data", "data", "--output",
        "runs/small", "--set", "data.limit=16", "--threads", "1",
    )  # fmt: skip
    assert done.code == 0, done.err
    student = inspect("runs/small/student")
    assert (student.family, student.stock_class) == (family, f"{classes}ForSequenceClassification")
    assert student.config.depth == 2
    if family == "albert":  # fewer steps through the same parameters
        assert student.parameters == tuned.parameters
    else:
        assert student.parameters < tuned.parameters

    if family in EXPORTED:  # of the others `distill` has measured both models in the same way
        done = compress("evaluate", "runs/small/student", "--data", "data", "--against", "runs/fine/model", "--json")
        assert done.code == 0, done.err
    texts = ["she said the film was good", "anna said the meal was not bad"]
    done = compress("predict", "runs/small/student", *texts, "--json")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["label"] in ("negative", "positive") for row in rows] == [True, True]
    _same_as_transformers(texts, rows)
    _a_cut_is_as_by_hand(family, texts, compress)
    _long_texts_are_truncated(family, compress)


@pytest.mark.parametrize(
    ("checkpoint", "family"),
    [(f, f) for f in ("albert", "electra", "modernbert", "nomic_bert", "roberta")],
    indirect=["checkpoint"],
)
def test_a_student_of_the_corpus_gets_the_teachers_task_head(checkpoint: Path, family: str, compress: Cli) -> None:
    teacher = _add_task_head(checkpoint, family)
    Path("both.yaml").write_text(BOTH, encoding="utf-8")
    done = compress(
        "distill", "--recipe", "./both.yaml", "--teacher", teacher, "--general-teacher", checkpoint,
        "--data", "data", "--set", "corpus.source=corpus.txt", "--output", "runs/small", "--threads", "1",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "the student's task head is copied from the teacher" in done.err
    student = inspect("runs/small/student")
    assert (student.family, student.stock_class) == (family, f"{FAMILIES[family][0]}ForSequenceClassification")
    assert inspect("runs/small/stages/0-distill/model").stock_class == f"{FAMILIES[family][0]}ForMaskedLM"


@pytest.mark.parametrize(("checkpoint", "family"), [(f, f) for f in FAMILIES], indirect=["checkpoint"], ids=FAMILIES)
def test_a_classifier_is_pretrained_further(checkpoint: Path, family: str, compress: Cli) -> None:
    """With a new masked-LM head of its family, which transformers loads."""
    import transformers

    done = compress(
        "pretrain", _add_task_head(checkpoint, family), "--corpus", "corpus.txt", "--steps", "2", "--max-length", "32",
        "--output", "runs/more", "--threads", "1",
    )  # fmt: skip
    assert done.code == 0, done.err
    info = inspect("runs/more/model")
    assert (info.family, info.stock_class) == (family, f"{FAMILIES[family][0]}ForMaskedLM")
    _, told = transformers.AutoModelForMaskedLM.from_pretrained("runs/more/model", output_loading_info=True)
    assert not told["missing_keys"]
    assert all("pooler" in key for key in told["unexpected_keys"]), "kept for a later fine-tuning"


def _add_task_head(checkpoint: Path, family: str) -> Path:
    """A classifier of the checkpoint's shape, as transformers leaves it."""
    import transformers

    classes = FAMILIES[family][0]
    config = config_class(transformers, classes).from_pretrained(checkpoint)
    config.id2label, config.label2id = {0: "negative", 1: "positive"}, {"negative": 0, "positive": 1}
    folder = shutil.copytree(checkpoint, Path("runs/fine"))
    (folder / "model.safetensors").unlink()
    getattr(transformers, f"{classes}ForSequenceClassification")(config).save_pretrained(folder)
    return folder


def _long_texts_are_truncated(family: str, compress: Cli) -> None:
    """transformers reads 2,000 words with what each stage and each command left."""
    import transformers

    folders = {"runs/fine/model": 32, "runs/small/student": 24, "runs/cut/model": 32}
    if family in EXPORTED:
        folders |= _cut_and_exported(compress)
    if inspect("runs/fine/model").config.positions == "learned":
        done = compress("extend", "runs/fine/model", "--max-positions", "100", "--output", "runs/long")
        assert done.code == 0, done.err
        folders["runs/long"] = 100
    for folder, length in folders.items():
        check_limits(folder)
        if inspect(folder).stock_class is not None:
            assert check_in_transformers(transformers, folder) == length, folder


def _cut_and_exported(compress: Cli) -> dict[str, int]:
    """Folder → the length that its texts are cut to."""
    done = compress(
        "prune-width", "runs/fine/model", "--keep", "0.5", "--no-recover", "--data", "data", "--max-length", "32",
        "--set", "evaluation.latency.seconds=0.1", "--set", "evaluation.bootstrap=100", "--set", "data.limit=16",
        "--output", "runs/narrow", "--threads", "1",
    )  # fmt: skip
    assert done.code == 0, done.err
    done = compress("export", "runs/small/student", "--to", "hf", "--output", "runs/hf", "--threads", "1")
    assert done.code == 0, done.err
    done = compress("export", "runs/small/student", "--output", "runs/onnx", "--threads", "1")
    assert done.code == 0, done.err
    return {"runs/narrow/model": 32, "runs/hf": 24, "runs/onnx": 24}


def _same_as_transformers(texts: list[str], rows: list[dict[str, Any]]) -> None:
    """The student in transformers' own classes, with its own tokenizer, gives the same probabilities."""
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained("runs/small/student")
    _answers_alike(model, "runs/small/student", texts, rows)


def _answers_alike(model: Any, folder: str, texts: list[str], rows: list[dict[str, Any]]) -> None:
    """A transformers model with the tokenizer of `folder` against what `predict` said."""
    import torch
    import transformers

    model.eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
    for text, row in zip(texts, rows, strict=True):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            probabilities = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.softmax(-1)[0]
        for index, label in model.config.id2label.items():
            assert row["probabilities"][label] == pytest.approx(float(probabilities[index]), abs=2e-4)


def _a_cut_is_as_by_hand(family: str, texts: list[str], compress: Cli) -> None:
    """`prune-layers`, read back, answers as transformers' own model with a layer taken out of it by hand."""
    import torch
    import transformers

    tuned = load_model("runs/fine/model")
    with torch.no_grad():  # random layers do next to nothing: one that is missing would not be missed
        for parameter in tuned.model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(0.3 * parameter / parameter.std())
    strong = save_model(Path("strong"), tuned.model, tokenizer_files=tuned.tokenizer_files, meta=tuned.meta)
    done = compress(
        "prune-layers", strong, "--keep", "2", "--criterion", "greedy-loss", "--no-recover", "--data",
        "data", "--max-length", "32", "--set", "stages.0.protect=[0]", "--set", "evaluation.latency.seconds=0.1",
        "--set", "data.limit=16",
        "--set", "evaluation.bootstrap=100", "--output", "runs/cut", "--threads", "1",
    )  # fmt: skip
    assert done.code == 0, done.err
    info = inspect("runs/cut/model")
    assert (info.config.depth, info.stock_class is None) == (2, False)
    told = json.loads(Path("runs/cut/stages/0-prune_layers/layers.json").read_text(encoding="utf-8"))
    kept = [int(row[0]) for row in told["data"] if "stays" in row]
    assert len(kept) == 2
    done = compress("predict", "runs/cut/model", *texts, "--json")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(strong)
    with pytest.raises(AssertionError):
        _answers_alike(whole, "runs/cut/model", texts, rows)
    base = whole.base_model
    if family == "albert":  # one module, called once less
        base.encoder.config.num_hidden_layers = 2
    else:
        flat = family in ("gte", "modernbert", "nomic_bert")
        holder = base if flat else getattr(base, HOLDERS.get(family, "encoder"))
        name = "layers" if flat else "layer"
        setattr(holder, name, torch.nn.ModuleList([getattr(holder, name)[i] for i in kept]))
    _answers_alike(whole, "runs/cut/model", texts, rows)
