"""The model card, README.md: what the model is for, what was measured, its limits, where it comes from, its use."""

from __future__ import annotations

from collections.abc import Sequence

from compress.contracts import FAKE
from compress.errors import list_some, without_folders
from compress.modelfolder.card.facts import QUESTION_ANSWERING, Facts
from compress.modelfolder.card.figures import as_measurement, format_measured, format_slices
from compress.modelfolder.card.front import format_front
from compress.modelfolder.card.text import escape, format_digest, format_section
from compress.modelfolder.card.usage import format_usage
from compress.modelfolder.cross_encoder import RERANKING
from compress.modelfolder.meta import FolderMeta
from compress.modelfolder.sentence_head import EMBEDDING
from compress.report.rows import Reference, is_fake


def render(meta: FolderMeta, facts: Facts) -> str:
    """The whole card."""
    parts = [
        format_front(meta, facts),
        f"# {escape(facts.name)}",
        _summary(meta, facts),
        _loading(meta, facts),
        format_section("Intended use", _intended(meta, facts)),
        format_measured(meta.measurement, meta.baseline, _reference(meta)),
        format_slices(meta.measurement),
        format_section("Limits", _limits(meta, facts)),
        format_section("Training data", _data(meta)),
        format_section("Provenance", _origin(meta)),
        format_section("Notes", [escape(note, 500) for note in meta.notes]),
        format_usage(meta, facts),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _reference(meta: FolderMeta) -> Reference:
    """What the model is compared with: its teacher, if it has one."""
    return "teacher" if any(one.role.startswith("teacher") for one in meta.lineage) else "parent"


def _summary(meta: FolderMeta, facts: Facts) -> str:
    if facts.stages:
        text = (
            f"A cascade of {len(facts.stages)} models, {facts.parameters:,} parameters in all. Each answers the texts "
        )
        text += "that it is sure of and passes the others on to the next one:"
        return "\n".join([text, "", *(f"{place}. {escape(line, 500)}" for place, line in enumerate(facts.stages, 1))])
    heads = {"mlm": "masked language model", "pair": "sentence pairs", "task": "task"}
    shape = (
        f"A static model, a vector of {facts.hidden} dimensions for each token, without attention: "
        f"{facts.parameters:,} parameters."
        if facts.is_static
        else f"An encoder of {facts.layers} layers of width {facts.hidden}: {facts.parameters:,} parameters, "
        f"{facts.parameters_without_embeddings:,} without embeddings."
    )
    lines = [
        shape,
        "",
        f"- heads: {', '.join(heads.get(h, h) for h in facts.heads) or 'none'}",
    ]
    if facts.exits:
        lines.append(
            f"- early exits after layers {', '.join(map(str, facts.exits))}: each answers the texts that it is sure "
            "of, and only the others go through the next layers"
        )
    if facts.sparse:
        lines.append(
            f"- {facts.sparse} matrices are 2:4 sparse: zeros that GPUs of compute capability 8.0 or more can skip "
            "(`--runtime torch-sparse`); elsewhere it is neither smaller nor faster than the dense model"
        )
    return "\n".join(lines)


def _loading(meta: FolderMeta, facts: Facts) -> str:
    if facts.stages:
        return (
            "`compress` loads the folder as one model. Other programs can load the model folders in it one by one "
            "(`stage-1`, `stage-2` …)."
        )
    if facts.is_static:
        return (
            "The folder loads unmodified with sentence-transformers (`StaticEmbedding`) and model2vec (`StaticModel`)."
        )
    file = " ONNX clients read `model.onnx`, which gives the same predictions." if facts.onnx else ""
    if meta.task == EMBEDDING and facts.is_stock:
        return (
            "The folder loads unmodified with sentence-transformers. "
            f"transformers' `{facts.stock_class}` loads it without pooling and normalization.{file}"
        )
    if facts.stock_class:
        other = ["computes with the float weights behind the integers"] if facts.quantized else []
        other += ["computes all layers, without the early exits"] if facts.exits else []
        but = f", which **{' and '.join(other)}**" if other else ""
        ours = " `compress` computes with the integers." if facts.quantized else ""
        loader = (
            "sentence-transformers" if meta.task in (EMBEDDING, RERANKING) else f"transformers' `{facts.stock_class}`"
        )
        return f"The folder loads unmodified with {loader}{but}.{ours}{file}"
    where = "Its weights are in `compress.safetensors`, which transformers does not read. Load it with `compress`."
    return f"**transformers cannot load this folder**: {facts.objection}. {where}{file}"


def _intended(meta: FolderMeta, facts: Facts) -> list[str]:
    lines = []
    if meta.task:
        lines.append(f"task: {escape(meta.task)}")
    elif "task" not in facts.heads:
        fills = " and masked-LM logits" if "mlm" in facts.heads else ""
        lines.append(f"no task head: it returns hidden states{fills}; fine-tune it before using it for a task")
    if meta.label_names and meta.task != RERANKING:  # whose one output has no name of its own
        lines.append(f"labels: {list_some([escape(name, 60) for name in meta.label_names], 50)}")
    if meta.language:
        lines.append(f"language: {list_some([escape(code, 20) for code in meta.language], 20)}")
    if meta.max_length:
        lines.append(f"trained on sequences of up to {meta.max_length} tokens")
    if meta.data:
        lines.append(f"for texts similar to {escape(without_folders(meta.data.name))}")
    parents = ", ".join(f"{escape(p.name)} ({escape(p.role)})" for p in meta.lineage)
    if meta.method or parents:
        by, of = (f" by: {escape(meta.method)}" if meta.method else ""), (f" from: {parents}" if parents else "")
        lines.append(f"made{by}{',' if by and of else ''}{of}")
    return lines


def _limits(meta: FolderMeta, facts: Facts) -> list[str]:
    """What was not measured, or holds only under a condition."""
    lines, note = [], meta.measurement
    if note is None:
        lines.append("not measured: no quality, size or speed is recorded here")
    else:
        if "dataset" in note.context:
            rows = f"{escape(note.context['rows'])} rows of " if "rows" in note.context else ""
            where = escape(without_folders(note.context["dataset"], parts=2))
            lines.append(f"measured on {rows}{where} only: its quality on other domains is unknown")
        if is_fake(as_measurement(note)):  # else the table shows the deployed file's figures
            lines.append(
                "figures marked as simulated were computed in floating point with rounded values: a deployed file may "
                "differ"
            )
        missing = [what for what, prefixes in _ASKED if not any(name.startswith(prefixes) for name in note.values)]
        missing += [] if note.slices else ["groups of rows with a higher error rate than the parent's"]
        if missing:
            lines.append(f"not recorded: {', '.join(missing)}")
    if not meta.data:
        lines.append("the training data is not recorded")
    if not meta.language:
        lines.append("the language is unknown: neither the data nor a model card names it")
    if meta.max_length:
        parts = meta.task == QUESTION_ANSWERING or meta.task_settings.get("long_text") == "chunk"
        fate = "split into parts" if parts else "truncated"
        lines.append(f"texts of more than {meta.max_length} tokens are {fate}")
    if not facts.certificate:
        lines.append("uncertified: the folder contains no certificate")
    return lines


# What a measurement can tell, and how the names of such figures begin.
_ASKED: Sequence[tuple[str, tuple[str, ...]]] = (
    ("quality", ("quality/", FAKE)),
    ("size", ("size/",)),
    ("latency", ("speed/latency",)),
    ("memory", ("memory/",)),
    ("the difference from a teacher", ("vs_teacher/", f"{FAKE}vs_teacher/")),
)


def _data(meta: FolderMeta) -> list[str]:
    if meta.data is None:
        return []
    rows = ", ".join(f"{escape(split)} {count:,}" for split, count in meta.data.rows.items())
    told = [f"rows: {rows}"] if rows else []
    return [
        f"name: {escape(without_folders(meta.data.name))}",
        *told,
        f"fingerprint: {format_digest(meta.data.fingerprint)}",
    ]


def _origin(meta: FolderMeta) -> list[str]:
    lines = []
    for parent in meta.lineage:
        lines.append(f"{escape(parent.role)}: {escape(parent.name)} ({format_digest(parent.fingerprint)})")
    if meta.recipe:
        stage = f", stage {escape(meta.recipe.stage)}" if meta.recipe.stage else ""
        digest = f" ({format_digest(meta.recipe.sha256)})" if meta.recipe.sha256 else ""
        lines.append(f"recipe: {escape(meta.recipe.name)}{stage}{digest}; in full in `compress.json`")
    if meta.software:
        lines.append("software: " + ", ".join(f"{escape(k)} {escape(v)}" for k, v in sorted(meta.software.items())))
    return lines
