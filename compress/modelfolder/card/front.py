"""The head of a model card, which model hubs read, as YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from compress.errors import printable, without_folders
from compress.modelfolder.card.facts import QUESTION_ANSWERING, Facts
from compress.modelfolder.cross_encoder import RERANKING
from compress.modelfolder.meta import FolderMeta, MeasurementNote
from compress.modelfolder.names import RESULTS
from compress.modelfolder.sentence_head import EMBEDDING

_OWN_PIPELINES = ("token-classification", QUESTION_ANSWERING)  # tasks that model hubs know by the same name


def format_front(meta: FolderMeta, facts: Facts) -> str:
    """The head that model hubs read, as YAML. Foreign names are left out where a hub has no such names."""
    tags = ["compress", *([re.sub(r"[^a-z0-9-]", "-", meta.method.lower())] if meta.method else [])]
    tags += [tag for tag, holds in (("onnx", facts.onnx), ("quantized", facts.quantized)) if holds]
    lines = ["---", f"library_name: {_library(meta, facts)}"]
    if (pipeline := _pipeline(meta, facts)) is not None:
        lines.append(f"pipeline_tag: {pipeline}")
    if meta.language:
        lines.append(f"language: [{', '.join(_codes(meta))}]")
    if meta.license is not None and _LICENSE.fullmatch(meta.license):
        lines.append(f"license: {_quoted(meta.license)}")
    parents = list(dict.fromkeys(p.name for p in meta.lineage if "/" in p.name and _HUB_NAME.fullmatch(p.name)))
    parents = [name for name in parents if name.rpartition("/")[2] not in RESULTS]  # nor run/student
    if parents:
        lines.append(f"base_model: [{', '.join(map(_quoted, parents))}]")
        lines += ["base_model_relation: quantized"] if facts.quantized else []
    data = "" if meta.data is None else meta.data.name
    if data.startswith("hf:") and _HUB_NAME.fullmatch(data := _data_name(data)):
        lines.append(f"datasets: [{_quoted(data)}]")
    found = _scores(meta.measurement)
    if found:
        lines.append(f"metrics: [{', '.join(dict.fromkeys(_METRICS[name] for name in found))}]")
    return "\n".join([*lines, f"tags: [{', '.join(tags)}]", *_model_index(meta, facts, found, pipeline), "---"])


_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,40}")
_HUB_NAME = re.compile(r"[0-9A-Za-z][\w.-]{0,95}(/[0-9A-Za-z][\w.-]{0,95})?", re.ASCII)
_METRICS: Mapping[str, str] = {
    "accuracy": "accuracy",
    "exact_match": "exact_match",
    **dict.fromkeys(("f1", "f1_micro", "f1_macro", "f1_binary", "entity_f1"), "f1"),
    "matthews": "matthews_correlation",
    "spearman": "spearmanr",
    "pearson": "pearsonr",
    "ndcg_at_10": "ndcg@10",
    "mrr_at_10": "mrr@10",
    **{f"recall_at_{count}": f"recall@{count}" for count in (1, 10, 100)},
}
"""Our names of metrics → those of the `evaluate` library, which model hubs know; of a search those of
sentence-transformers."""


def _library(meta: FolderMeta, facts: Facts) -> str:
    """What loads the folder as it is meant to be computed: of a quantized one with integers."""
    if facts.is_static:
        return "sentence-transformers"
    if facts.is_stock:
        return "sentence-transformers" if meta.task in (EMBEDDING, RERANKING) else "transformers"
    return "onnx" if facts.onnx else "compress"


def _pipeline(meta: FolderMeta, facts: Facts) -> str | None:
    if facts.is_static:
        return "sentence-similarity"
    if "task" in facts.heads:
        if meta.task == RERANKING:
            return "text-ranking"
        if meta.task == EMBEDDING:
            return "sentence-similarity"
        return meta.task if meta.task in _OWN_PIPELINES else "text-classification"
    return "fill-mask" if "mlm" in facts.heads else None


def _scores(note: MeasurementNote | None) -> dict[str, float]:
    """Metric → value, of what was measured and not simulated; the main metric comes first."""
    if note is None:
        return {}
    main = note.context.get("metric")
    names = sorted(_METRICS, key=lambda name: name != main)
    return {name: note.values[f"quality/{name}"] for name in names if f"quality/{name}" in note.values}


def _model_index(meta: FolderMeta, facts: Facts, scores: Mapping[str, float], pipeline: str | None) -> list[str]:
    """The measured figures in the form of model hubs; empty without any, or where the rows are unknown."""
    note = meta.measurement
    if note is None or not scores or pipeline is None or "dataset" not in note.context:
        return []
    name, _, split = _data_name(note.context["dataset"], parts=2).rpartition("/")
    shown = _plain(name or split)
    lines = ["model-index:", f"- name: {_quoted(_plain(facts.name))}", "  results:"]
    lines += ["  - task:", f"      type: {pipeline}", "    dataset:", f"      name: {_quoted(shown)}"]
    lines.append(f"      type: {_quoted(shown)}")
    if name and re.fullmatch(r"[\w-]+", split, re.ASCII):
        lines.append(f"      split: {_quoted(split)}")
    lines.append("    metrics:")
    for metric, value in scores.items():
        lines += [f"    - type: {_METRICS[metric]}", f"      name: {metric}", f"      value: {value:.6f}"]
    return lines


def _data_name(name: str, parts: int = 1) -> str:
    """Without folders of a machine and the mark of a hub's name."""
    return name.removeprefix("hf:") if name.startswith("hf:") else without_folders(name, parts=parts)


def _plain(text: str) -> str:
    """Foreign text as a name: letters, digits and few marks."""
    return re.sub(r"[^\w .-]+", "-", text)


def _quoted(text: str) -> str:
    """A string of YAML. Printable text without control characters is the same in JSON."""
    return json.dumps(printable(text, 200), ensure_ascii=False)


def _codes(meta: FolderMeta) -> list[str]:
    """Quoted: `no` is a language, and false in YAML."""
    return [f'"{re.sub(r"[^0-9A-Za-z-]", "", code)}"' for code in meta.language]
