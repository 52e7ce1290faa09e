"""The files of a folder that a browser runs, laid out as transformers.js expects them.

The page needs two npm packages, which the user installs into the folder; package.json names their versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

from compress.data.task import Task
from compress.data.tasks import for_head, task_of
from compress.data.text import tokenizer_files
from compress.errors import UserError
from compress.modelfolder.folder import LoadedModel
from compress.onnx.model_file import QUANTIZED, SECOND
from compress.onnx.precision import FLOAT
from compress.onnx.writer import WrittenFile
from compress.storage import safe
from evaluation.quality.entities import scheme_of

HERE = Path(__file__).parent
PAGE, TASK, CONFIG = "index.html", "task.json", "config.json"
FILLED = (PAGE, "README.md")
COPIED = ("page.js", "model.js", "model.py", "package.json")
CARRIED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
LIMIT = 1 << 26
"""Bytes of one file of a model folder beside its weights."""


@dataclass(frozen=True)
class Field:
    """A text field of the page. example: what it holds at first."""

    name: str
    example: str
    required: bool = True


@dataclass(frozen=True)
class WebTask:
    """What the page does for a kind of task.

    answer: one of the labels, any of them, a score, a tag of each word, the similarity of two texts.  pipeline: the
    task's name in transformers.js.
    """

    answer: Literal["one", "any", "score", "tags", "similarity"]
    about: str
    pipeline: str
    fields: Sequence[Field]


_TEXT = Field("Text", "It was better than I expected.")
_PAIR = (Field("First text", "A man plays the guitar."), Field("Second text", "Someone is making music."))
WEB_TASKS: Mapping[str, WebTask] = {
    "classification": WebTask("one", "Classifies a text", "text-classification", [_TEXT]),
    "multi-label": WebTask("any", "Finds the labels that apply to a text", "text-classification", [_TEXT]),
    "pair-classification": WebTask("one", "Classifies a pair of texts", "text-classification", _PAIR),
    "regression": WebTask(
        "score",
        "Scores a text or a pair of texts",
        "text-classification",
        [_PAIR[0], Field(_PAIR[1].name, _PAIR[1].example, required=False)],
    ),
    "reranking": WebTask(
        "score",
        "Scores how well a document answers a query",
        "text-classification",
        [Field("Query", "How do I change my PIN?"), Field("Document", "You can change your PIN at a cash machine.")],
    ),
    "token-classification": WebTask(
        "tags",
        "Tags the words of a text",
        "token-classification",
        [Field("Text", "Anna Schmidt works for the United Nations in Geneva.")],
    ),
    "embedding": WebTask("similarity", "Compares two texts by their embeddings", "feature-extraction", _PAIR),
}


def require_web_task(loaded: LoadedModel) -> Task:
    """The model's task. Raises UserError for a kind that the page does not support, and for a model without one."""
    if "task" not in loaded.heads:
        why = "it has no task head"
        raise UserError("a web page needs a model with a task", where=str(loaded.path), why=why, do="fine-tune it")
    head, settings = loaded.heads["task"], loaded.meta.task_settings
    named = loaded.meta.task
    task = task_of(named, settings) if named else for_head((head.kind, head.problem)).configure(settings)
    if task.kind not in WEB_TASKS:
        raise UserError(
            f"{task.kind} is not supported by --to web",
            where=str(loaded.path),
            why=f"supported: {', '.join(WEB_TASKS)}",
            do="use --to onnx",
        )
    return task


def make_web_files(loaded: LoadedModel, task: Task, written: WrittenFile, title: str) -> dict[str, bytes]:
    """By name, all files of the folder.

    loaded: the model in a folder that this program saved.  task: see `require_web_task`.  written: its ONNX file.
    title: of the page.
    """
    web, folder, content = WEB_TASKS[task.kind], loaded.path, written.content
    precision = written.record["precision"]
    is_float = precision == FLOAT
    file = SECOND if is_float else QUANTIZED
    config = safe.read_json(folder / CONFIG, LIMIT)
    config["transformers.js_config"] = {"dtype": "fp32" if is_float else "q8"}
    names = f", {len(loaded.label_names)} labels" if web.answer in ("one", "any", "tags") else ""
    examples = [json.dumps(field.example) for field in web.fields if field.required]
    values = {
        "title": title,
        "about": f"{web.about}{names}. Precision: {precision}, {len(content) / 1e6:.1f} MB.",
        "call": ", ".join(examples),
        "words": " ".join(examples),
        "pipeline": web.pipeline,
        "file": file,
    }
    return {
        **{name: _fill(name, values) for name in FILLED},
        **{name: (HERE / name).read_bytes() for name in COPIED},
        **{name: safe.read_bytes(folder / name, LIMIT) for name in CARRIED if (folder / name).is_file()},
        CONFIG: _json(config),
        TASK: _json({"file": file, **_describe(loaded, task, web)}),
        file: content,
    }


def _describe(loaded: LoadedModel, task: Task, web: WebTask) -> dict[str, Any]:
    """What `model.js` must know to answer as `compress predict` does."""
    settings = loaded.meta.task_settings
    positions = loaded.config.max_positions
    where = str(loaded.path)
    side = tokenizer_files.truncation_side(tokenizer_files.settings(loaded.tokenizer_files, where), where)
    described = {
        "task": task.kind,
        "answer": web.answer,
        "fields": [asdict(field) for field in web.fields],
        "labels": list(loaded.label_names),
        "max_length": min(loaded.meta.max_length or positions, positions),
        "truncation_side": side,
    }
    if web.answer == "one":
        described["temperature"] = settings.get("temperature", 1.0)
    if web.answer == "tags":
        described["scheme"] = scheme_of(loaded.label_names)
    if task.kind == "reranking":
        described["sigmoid"] = settings.get("activation", "sigmoid") != "identity"
    if web.answer == "similarity":
        described |= {"prompt": settings.get("prompt", ""), "lowercase": settings.get("lowercase", False)}
    return described


def _fill(name: str, values: Mapping[str, str]) -> bytes:
    """A template of this package with its {{names}} replaced; in HTML nothing of the values becomes markup."""
    text = (HERE / name).read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace("{{" + key + "}}", escape(value) if name == PAGE else value)
    return text.encode()


def _json(values: Any) -> bytes:
    return (json.dumps(values, ensure_ascii=False, indent=2) + "\n").encode()
