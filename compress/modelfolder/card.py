"""The model card, README.md: what was measured, where the model comes from, how to use it.

Label names, data names and parents' names are foreign text: they are escaped, so that a card cannot carry HTML, links
or control characters that its author did not write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compress.contracts import FAKE
from compress.errors import printable
from compress.modelfolder.meta import FolderMeta, MeasurementNote

_LINKS = {"://": "&#58;//", "www.": "www&#46;", "@": "&#64;"}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~])")

# Metric → heading and number format of the measured table; other metrics follow under their own names.
_FIGURES: Sequence[tuple[str, str, str]] = (
    ("size/params_m", "parameters, M", ".2f"),
    ("size/params_no_embedding_m", "without embeddings, M", ".2f"),
    ("size/disk_mb", "on disk, MB", ".2f"),
    ("speed/gflops", "GFLOPs", ".3f"),
    ("speed/latency_p50_ms", "latency p50, ms", ".2f"),
    ("speed/latency_p95_ms", "latency p95, ms", ".2f"),
    ("speed/throughput_sps", "sequences per second", ".1f"),
    ("memory/peak_mb", "peak memory, MB", ".0f"),
)


@dataclass(frozen=True)
class Facts:
    """What the card says about the model itself. stock_class: None when transformers cannot load the folder."""

    name: str
    parameters: int
    parameters_without_embeddings: int
    layers: int
    hidden: int
    heads: tuple[str, ...]
    stock_class: str | None
    objections: Mapping[str, str]


def escape(text: str, limit: int = 200) -> str:
    """Foreign text as plain markdown text on one line."""
    clean = printable(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    clean = _MARKDOWN.sub(r"\\\1", clean)
    for mark, entity in _LINKS.items():  # else a bare address becomes a link
        clean = clean.replace(mark, entity)
    return clean


def _digest(text: str) -> str:
    """The start of a fingerprint, as code: a code span knows no escapes, so only what a digest is made of may enter."""
    return f"`{re.sub(r'[^0-9a-zA-Z]', '', text)[:16]}`"


QUESTION_ANSWERING = "question-answering"
_OWN_PIPELINES = ("token-classification", QUESTION_ANSWERING)  # tasks that model hubs know by the same name


def render(meta: FolderMeta, facts: Facts) -> str:
    """The whole card."""
    parts = [
        _front(meta, facts),
        f"# {escape(facts.name)}",
        _summary(meta, facts),
        _loading(facts),
        _measured(meta.measurement, meta.baseline),
        _origin(meta),
        _use(meta, facts),
        "\n".join(f"- {escape(note, 500)}" for note in meta.notes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front(meta: FolderMeta, facts: Facts) -> str:
    """The head that model hubs read."""
    tags = ["compress", *([re.sub(r"[^a-z0-9-]", "-", meta.method.lower())] if meta.method else [])]
    lines = ["---", f"library_name: {'transformers' if facts.stock_class else 'compress'}"]
    if "task" in facts.heads:
        lines.append(f"pipeline_tag: {meta.task if meta.task in _OWN_PIPELINES else 'text-classification'}")
    elif "mlm" in facts.heads:
        lines.append("pipeline_tag: fill-mask")
    return "\n".join([*lines, f"tags: [{', '.join(tags)}]", "---"])


def _summary(meta: FolderMeta, facts: Facts) -> str:
    heads = {"mlm": "masked language model", "pair": "sentence pairs", "task": "task"}
    lines = [
        f"An encoder of {facts.layers} layers of width {facts.hidden}: {facts.parameters:,} parameters, "
        f"{facts.parameters_without_embeddings:,} without embeddings.",
        "",
        f"- heads: {', '.join(heads.get(h, h) for h in facts.heads) or 'none'}",
    ]
    if meta.method:
        lines.append(f"- made by: {escape(meta.method)}")
    if meta.task:
        lines.append(f"- task: {escape(meta.task)}")
    if meta.label_names:
        shown = [escape(name, 60) for name in meta.label_names[:50]]
        more = f" and {len(meta.label_names) - 50} more" if len(meta.label_names) > 50 else ""
        lines.append(f"- labels: {', '.join(shown)}{more}")
    if meta.max_length:
        lines.append(f"- trained on sequences of up to {meta.max_length} tokens")
    return "\n".join(lines)


def _loading(facts: Facts) -> str:
    if facts.stock_class:
        return f"The folder loads unmodified with transformers' `{facts.stock_class}`."
    reasons = "; ".join(f"not as `{name}`, because {reason}" for name, reason in facts.objections.items())
    return f"**transformers cannot load this folder** ({reasons}). `compress` loads it."


def _measured(model: MeasurementNote | None, teacher: MeasurementNote | None) -> str:
    if model is None:
        return ""
    names = ["", "this model", "teacher", "ratio"] if teacher else ["", "this model"]
    rows = [f"| {' | '.join(names)} |", "|---" + "|--:" * (len(names) - 1) + "|"]
    quality = sorted(n for n in model.values if n.startswith(("quality/", FAKE)) and not n.endswith(("_low", "_high")))
    for metric, title, form in [*((n, escape(n.partition("/")[2]), ".4f") for n in quality), *_FIGURES]:
        if metric in model.values:
            rows.append(_row(metric, title, form, model, teacher))
    rest = sorted(n for n in model.values if n.startswith("vs_teacher/"))
    rows += [f"| {escape(n)} | {model.values[n]:.2f}{' | | ' if teacher else ' '}|" for n in rest]
    context = ", ".join(f"{escape(k)}: {escape(v)}" for k, v in sorted(model.context.items()))
    return "\n".join(["## Measured", "", *rows, *(["", f"Measured with {context}."] if context else [])])


def _row(metric: str, title: str, form: str, model: MeasurementNote, teacher: MeasurementNote | None) -> str:
    cells = [title, _cell(metric, form, model)]
    if teacher:
        theirs, ours = teacher.values.get(metric), model.values[metric]
        cells += [_cell(metric, form, teacher), f"{ours / theirs:.3f}" if theirs else ""]
    return f"| {' | '.join(cells)} |"


def _cell(metric: str, form: str, note: MeasurementNote) -> str:
    """The figure, with its interval where one was measured."""
    value = note.values.get(metric)
    if value is None:
        return ""
    low, high = note.values.get(f"{metric}_low"), note.values.get(f"{metric}_high")
    interval = "" if low is None or high is None else f" ({low:{form}} to {high:{form}})"
    return f"{value:{form}}{interval}"


def _origin(meta: FolderMeta) -> str:
    lines = []
    for parent in meta.lineage:
        lines.append(f"- {escape(parent.role)}: {escape(parent.name)} ({_digest(parent.fingerprint)})")
    if meta.recipe:
        stage = f", stage {escape(meta.recipe.stage)}" if meta.recipe.stage else ""
        digest = f" ({_digest(meta.recipe.sha256)})" if meta.recipe.sha256 else ""
        lines.append(f"- recipe: {escape(meta.recipe.name)}{stage}{digest}; in full in `compress.json`")
    if meta.data:
        rows = ", ".join(f"{escape(split)} {count:,}" for split, count in meta.data.rows.items())
        rows = f", rows: {rows}" if rows else ""
        lines.append(f"- data: {escape(meta.data.name)} ({_digest(meta.data.fingerprint)}){rows}")
    if meta.software:
        lines.append("- software: " + ", ".join(f"{escape(k)} {escape(v)}" for k, v in sorted(meta.software.items())))
    return "\n".join(["## Where it comes from", "", *lines]) if lines else ""


def _use(meta: FolderMeta, facts: Facts) -> str:
    lines = ["## Use", ""]
    if "task" in facts.heads:
        given = '--question "…" --context "…"' if meta.task == QUESTION_ANSWERING else '"a text to judge"'
        lines += ["```sh", f"compress predict <this folder> {given}", "```"]
    if facts.stock_class:
        asks = meta.task == QUESTION_ANSWERING
        cut = '"only_second"' if asks else "True"
        length = f", truncation={cut}, max_length={meta.max_length}" if meta.max_length else ""
        texts = '"a question", "a context"' if asks else '"a text"'
        lines += [
            "```python",
            f"from transformers import AutoTokenizer, {facts.stock_class}",
            "",
            'tokenizer = AutoTokenizer.from_pretrained("<this folder>")',
            f'model = {facts.stock_class}.from_pretrained("<this folder>")',
            f'output = model(**tokenizer({texts}, return_tensors="pt"{length}))',
            "```",
        ]
    else:
        lines += [
            "```python",
            "from pathlib import Path",
            "",
            "from compress.modelfolder.folder import load_model",
            "",
            'model = load_model(Path("<this folder>")).model',
            "```",
        ]
    return "\n".join(lines)
