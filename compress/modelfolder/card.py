"""The model card, README.md: what the model is for, what was measured and what not, where it comes from, how to use it.

Label names, data names and parents' names are foreign text: they are escaped, so that a card cannot carry HTML, links
or control characters that its author did not write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compress.contracts import FAKE
from compress.errors import printable, without_folders
from compress.modelfolder.cross_encoder import RERANKING
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
    """What the card says about the model itself. stock_class: None when transformers cannot load the folder.

    certificate: whether the folder holds one.  stages: of a cascade, a sentence on each of its models.  sparse:
    matrices that are 2:4 sparse.  quantized: whether matrices or tables are, so that a stock class computes with other
    numbers.  onnx: whether the folder holds a `model.onnx`.
    """

    name: str
    parameters: int
    parameters_without_embeddings: int
    layers: int
    hidden: int
    heads: tuple[str, ...]
    stock_class: str | None
    objections: Mapping[str, str]
    certificate: bool = False
    stages: tuple[str, ...] = ()
    sparse: int = 0
    quantized: bool = False
    onnx: bool = False

    @property
    def is_static(self) -> bool:
        """Whether the model is a vector for each token, which transformers has no class for."""
        return self.layers == 0


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
        _section("Intended use", _intended(meta, facts)),
        _measured(meta.measurement, meta.baseline),
        _slices(meta.measurement),
        _section("Limits", _limits(meta, facts)),
        _section("Training data", _data(meta)),
        _section("Provenance", _origin(meta)),
        _section("Notes", [escape(note, 500) for note in meta.notes]),
        _use(meta, facts),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(title: str, lines: Sequence[str]) -> str:
    """A heading and a list under it; nothing where nothing is known."""
    return "\n".join([f"## {title}", "", *(f"- {line}" for line in lines)]) if lines else ""


def _front(meta: FolderMeta, facts: Facts) -> str:
    """The head that model hubs read, as YAML. Foreign names are left out where a hub has no such names."""
    tags = ["compress", *([re.sub(r"[^a-z0-9-]", "-", meta.method.lower())] if meta.method else [])]
    tags += [tag for tag, holds in (("onnx", facts.onnx), ("quantized", facts.quantized)) if holds]
    lines = ["---", f"library_name: {_library(facts)}"]
    if (pipeline := _pipeline(meta, facts)) is not None:
        lines.append(f"pipeline_tag: {pipeline}")
    if meta.language:
        lines.append(f"language: [{', '.join(_codes(meta))}]")
    if meta.license is not None and _LICENSE.fullmatch(meta.license):
        lines.append(f"license: {_quoted(meta.license)}")
    parents = list(dict.fromkeys(p.name for p in meta.lineage if _HUB_NAME.fullmatch(p.name)))
    parents = [name for name in parents if name not in _NAMELESS]
    if parents:
        lines.append(f"base_model: [{', '.join(map(_quoted, parents))}]")
        lines += ["base_model_relation: quantized"] if facts.quantized else []
    if meta.data is not None and _HUB_NAME.fullmatch(data := _data_name(meta.data.name)):
        lines.append(f"datasets: [{_quoted(data)}]")
    found = _scores(meta.measurement)
    if found:
        lines.append(f"metrics: [{', '.join(dict.fromkeys(_METRICS[name] for name in found))}]")
    return "\n".join([*lines, f"tags: [{', '.join(tags)}]", *_model_index(meta, facts, found, pipeline), "---"])


_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,40}")
_HUB_NAME = re.compile(r"[0-9A-Za-z][\w.-]{0,95}(/[0-9A-Za-z][\w.-]{0,95})?", re.ASCII)
_NAMELESS = ("model", "student")
"""Names of a run's result, which say nothing of the model."""
_METRICS: Mapping[str, str] = {
    "accuracy": "accuracy",
    "exact_match": "exact_match",
    **dict.fromkeys(("f1", "f1_micro", "f1_macro", "f1_binary", "entity_f1"), "f1"),
    "matthews": "matthews_correlation",
    "spearman": "spearmanr",
    "pearson": "pearsonr",
}
"""Our names of metrics → those of the `evaluate` library, which model hubs know."""


def _library(facts: Facts) -> str:
    """What loads the folder as it is meant to be computed: of a quantized one with integers."""
    if facts.is_static:
        return "sentence-transformers"
    if facts.stock_class and not facts.quantized:
        return "transformers"
    return "onnx" if facts.onnx else "compress"


def _pipeline(meta: FolderMeta, facts: Facts) -> str | None:
    if facts.is_static:
        return "sentence-similarity"
    if "task" in facts.heads:
        if meta.task == RERANKING:
            return "text-ranking"
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
    if facts.sparse:
        lines.append(
            f"- {facts.sparse} matrices are 2:4 sparse: zeros that GPUs of compute capability 8.0 or more can skip "
            "(`--runtime torch-sparse`); elsewhere it is neither smaller nor faster than the dense model"
        )
    return "\n".join(lines)


def _loading(facts: Facts) -> str:
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
    if facts.stock_class and facts.quantized:
        text = f"The folder loads unmodified with transformers' `{facts.stock_class}`, which **computes with the float "
        return text + "weights behind the integers**. `compress` computes with the integers." + file
    if facts.stock_class:
        return f"The folder loads unmodified with transformers' `{facts.stock_class}`." + file
    alike: dict[str, list[str]] = {}  # one reason often holds for all of them
    for name, reason in facts.objections.items():
        alike.setdefault(reason, []).append(f"`{name}`")
    reasons = "; ".join(f"not as {', '.join(names)}, because {reason}" for reason, names in alike.items())
    where = "Its weights are in `compress.safetensors`, which transformers does not read. Load it with `compress`."
    return f"**transformers cannot load this folder** ({reasons}). {where}{file}"


def _intended(meta: FolderMeta, facts: Facts) -> list[str]:
    lines = []
    if meta.task:
        lines.append(f"task: {escape(meta.task)}")
    elif "task" not in facts.heads:
        fills = " and masked-LM logits" if "mlm" in facts.heads else ""
        lines.append(f"no task head: it returns hidden states{fills}; fine-tune it before using it for a task")
    if meta.label_names:
        shown = [escape(name, 60) for name in meta.label_names[:50]]
        more = f" and {len(meta.label_names) - 50} more" if len(meta.label_names) > 50 else ""
        lines.append(f"labels: {', '.join(shown)}{more}")
    shown = ", ".join(escape(code, 20) for code in meta.language[:20])
    more = f" and {len(meta.language) - 20} more" if len(meta.language) > 20 else ""
    lines += [f"language: {shown}{more}"] if shown else []
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
        if any(name.startswith(FAKE) for name in note.values):
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
        lines.append("the language is unknown: no model card names it")
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


def _slices(note: MeasurementNote | None) -> str:
    found = None if note is None else note.slices
    if found is None:
        return ""
    text = _section("Slices", [escape(line, 1000) for line in found.lines])
    if not found.rows:
        return text
    rule = "|---" * len(found.columns) + "|"
    head, *rows = (f"| {' | '.join(escape(cell) for cell in row)} |" for row in (found.columns, *found.rows))
    return "\n".join([text, "", head, rule, *rows])


def _measured(model: MeasurementNote | None, teacher: MeasurementNote | None) -> str:
    if model is None:
        return ""
    names = ["", "this model", "teacher", "ratio"] if teacher else ["", "this model"]
    rows = [f"| {' | '.join(names)} |", "|---" + "|--:" * (len(names) - 1) + "|"]
    quality = sorted(n for n in model.values if n.startswith(("quality/", FAKE)) and not n.endswith(("_low", "_high")))
    for metric, title, form in [*((n, _title(n), ".4f") for n in quality), *_FIGURES]:
        if metric in model.values:
            rows.append(_row(metric, title, form, model, teacher))
    rest = sorted(n for n in model.values if n.startswith("vs_teacher/") and not n.endswith(("_low", "_high")))
    rows += [f"| {escape(n)} | {_cell(n, _form(n), model)}{' | | ' if teacher else ' '}|" for n in rest]
    told = {k: without_folders(v, parts=2) if k == "dataset" else v for k, v in model.context.items()}
    context = ", ".join(f"{escape(k)}: {escape(v)}" for k, v in sorted(told.items()))
    return "\n".join(["## Measured", "", *rows, *(["", f"Measured with {context}."] if context else [])])


def _form(metric: str) -> str:
    """Number format of a figure against the teacher."""
    return ".4f" if metric.endswith("_difference") else ".2g" if metric.endswith("p_value") else ".2f"


def _title(metric: str) -> str:
    return escape(metric.partition("/")[2]) + (" (simulated)" if metric.startswith(FAKE) else "")


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


def _data(meta: FolderMeta) -> list[str]:
    if meta.data is None:
        return []
    rows = ", ".join(f"{escape(split)} {count:,}" for split, count in meta.data.rows.items())
    told = [f"rows: {rows}"] if rows else []
    return [f"name: {escape(without_folders(meta.data.name))}", *told, f"fingerprint: {_digest(meta.data.fingerprint)}"]


def _origin(meta: FolderMeta) -> list[str]:
    lines = []
    for parent in meta.lineage:
        lines.append(f"{escape(parent.role)}: {escape(parent.name)} ({_digest(parent.fingerprint)})")
    if meta.recipe:
        stage = f", stage {escape(meta.recipe.stage)}" if meta.recipe.stage else ""
        digest = f" ({_digest(meta.recipe.sha256)})" if meta.recipe.sha256 else ""
        lines.append(f"recipe: {escape(meta.recipe.name)}{stage}{digest}; in full in `compress.json`")
    if meta.software:
        lines.append("software: " + ", ".join(f"{escape(k)} {escape(v)}" for k, v in sorted(meta.software.items())))
    return lines


def _use(meta: FolderMeta, facts: Facts) -> str:
    """Code that computes what the figures are of: of a quantized model with integers, never its float weights."""
    lines = ["## How to use", ""]
    if "task" in facts.heads:
        own = {QUESTION_ANSWERING: '--question "…" --context "…"', RERANKING: '"a query" --pair "a document"'}
        given = own.get(meta.task or "", '"some text"')
        lines += ["```sh", f"compress predict <this folder> {given}", "```", ""]
    if facts.is_static:
        return "\n".join([*lines, "With sentence-transformers:", "", *_with_sentence_transformers()])
    if meta.task == RERANKING and facts.stock_class and not facts.quantized:
        lines += ["With sentence-transformers:", "", *_WITH_CROSS_ENCODER, ""]
    elif facts.stock_class and not facts.quantized:
        lines += ["With transformers:", "", *_with_transformers(meta, facts.stock_class), ""]
    if facts.onnx:
        computes = ", which computes with integers" if facts.quantized else ""
        lines += [f"With onnxruntime and the tokenizer{computes}:", "", *_with_onnxruntime(meta), ""]
    if not facts.stock_class or (facts.quantized and not facts.onnx):
        lines += ["With compress:", "", *_with_compress(meta, facts), ""]
    if facts.quantized and not facts.onnx:
        lines.append("`compress export <this folder> --output <new folder>` writes an ONNX file for other programs.")
    return "\n".join(lines).rstrip()


_WITH_CROSS_ENCODER = (
    "```python",
    "from sentence_transformers import CrossEncoder",
    "",
    'scores = CrossEncoder("<this folder>").predict([("a query", "a document")])',
    "```",
)


def _call(meta: FolderMeta, tensors: str) -> str:
    """The tokenizer's arguments."""
    asks = meta.task == QUESTION_ANSWERING
    cut = '"only_second"' if asks else "True"
    length = f", truncation={cut}, max_length={meta.max_length}" if meta.max_length else ""
    pairs = {QUESTION_ANSWERING: '"a question", "a context"', RERANKING: '"a query", "a document"'}
    texts = pairs.get(meta.task or "", '"a text"')
    return f'{texts}, return_tensors="{tensors}"{length}'


def _with_transformers(meta: FolderMeta, name: str) -> list[str]:
    return [
        "```python",
        f"from transformers import AutoTokenizer, {name}",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("<this folder>")',
        f'model = {name}.from_pretrained("<this folder>")',
        f"output = model(**tokenizer({_call(meta, 'pt')}))",
        "```",
    ]


def _with_sentence_transformers() -> list[str]:
    return [
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        'vectors = SentenceTransformer("<this folder>").encode(["a text"])',
        "```",
    ]


def _with_onnxruntime(meta: FolderMeta) -> list[str]:
    return [
        "```python",
        "import onnxruntime",
        "from transformers import AutoTokenizer",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("<this folder>")',
        'session = onnxruntime.InferenceSession("<this folder>/model.onnx")',
        f"encoded = tokenizer({_call(meta, 'np')})",
        'inputs = {entry.name: encoded[entry.name].astype("int64") for entry in session.get_inputs()}',
        "outputs = session.run(None, inputs)",
        "```",
    ]


def _with_compress(meta: FolderMeta, facts: Facts) -> list[str]:
    integers = ', device="cpu", runtime="torch-int8"' if facts.quantized else ""
    if "task" not in facts.heads:
        load = ["from pathlib import Path", "", "from compress.modelfolder.folder import load_model", ""]
        return ["```python", *load, 'model = load_model(Path("<this folder>")).model', "```"]
    own = {QUESTION_ANSWERING: '"a question", ["a context"]', RERANKING: '["a query"], ["a document"]'}
    texts = own.get(meta.task or "", '"a text"')
    return [
        "```python",
        "import compress",
        "",
        f'model = compress.load("<this folder>"{integers})',
        f"answers = model.predict({texts})",
        "```",
    ]
