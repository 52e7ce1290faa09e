"""`compress analyze`: what the layers of a model compute, and how that differs from the model it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compress.console import Console
from compress.contracts import Needs, RunOptions
from compress.data.batches import evaluation_batches
from compress.data.examples import Examples
from compress.data.table import UNLABELLED, Table
from compress.data.tasks import task_of
from compress.data.tokenizer import Tokenizer
from compress.durable import atomic
from compress.encoder.inference import PreparedModel, prepare
from compress.errors import ExitCode, UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import LoadedModel
from compress.modelnames import resolve
from compress.plots import heatmap
from compress.predictor import MAX_TOKENS
from compress.recipe import load_recipe
from compress.report import markdown
from compress.runfolder import RUNS
from compress.stages import open_table_of
from compress.tracking import TrackedRun, open_asked
from evaluation.representation.anisotropy import anisotropy, whitened, without_top
from evaluation.representation.cka import LEAST_BLOCKS, MINIBATCH, LayerCKA
from evaluation.representation.hsic import LEAST_ROWS, NonFiniteError, UndefinedError
from evaluation.representation.probes import Probed, probe
from evaluation.representation.rows import rows_of

OUTLIERS = 3  # dimensions that the second heatmap leaves out, and components that are removed
SAMPLE = 1500  # tokens whose pairs anisotropy is measured on
PROBE_ROWS = {"train": 1000, "test": 500}  # texts of a probe
PROBED = ("token-classification", "classification", "pair-classification")
PROBE_TOKENS = 6000  # most words of a probe's split

Table2 = tuple[tuple[str, ...], list[tuple[str, ...]]]


@dataclass
class Analysis:
    """What was found: tables and plots by file name, and lines."""

    tables: dict[str, tuple[str, Table2]] = field(default_factory=dict)
    plots: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Model:
    """A model that is looked at."""

    name: str
    loaded: LoadedModel
    prepared: PreparedModel
    tokenizer: Tokenizer

    @property
    def layers(self) -> list[str]:
        """What its outputs are called."""
        return ["emb", *map(str, range(self.loaded.config.depth))]

    def states(self, examples: Examples) -> Any:
        """(batch, outputs of embeddings and layers) for each batch."""
        for batch in evaluation_batches(examples, MAX_TOKENS):
            yield batch, self.prepared(batch.to(self.loaded.model.encoder.embeddings.word.weight.device), _ALL)


_ALL = Needs(hidden_states=True)


def analyze(model: str, against: str | None, probes: Sequence[str], rows: int, options: RunOptions) -> Analysis:
    """Look at a model on the texts of `--data`, print, write and track what was found.

    against: the model that it was made from.  probes: labelled data, each a probe at every layer.  rows: texts read.
    Raises UserError for data and models that do not fit, and an output folder that is there.
    """
    console = Console(quiet=options.quiet, json=options.json)
    folder = resolve(model)
    output = (
        options.output or RUNS / f"analyze-{folder.resolve().parent.name if folder.name in _PLAIN else folder.name}"
    )
    if output.exists():
        raise UserError(
            "the output folder exists", where=f"--output {output}", do="name another", code=ExitCode.REFUSED
        )
    one = _opened(folder, options)
    other = None if against is None else _opened(resolve(against), options)
    if other is not None and not modelfolder.same_vocabulary(folder, other.loaded.path):
        raise UserError(
            "the models cut texts differently", where="--against", do="name a model with the same tokenizer"
        )
    table = _table("--data", None, one, options, console)
    examples = _encoded(one, table, "train", rows)
    found = Analysis()
    try:
        _likeness(one, other, examples, found)
        _evenness(one, examples, found)
    except NonFiniteError as error:
        where = "the embedding output" if not error.layer else f"the output of layer {error.layer - 1}"
        raise UserError(f"{where} is not finite", where=str(folder), do="its weights are damaged") from None
    except UndefinedError as error:
        raise UserError(str(error), where="--data", do="give more text") from None
    for source in probes:
        _probed(one, source, options, console, found)
    _tell(found, output, one.name, table, options, console)
    return found


_PLAIN = ("model", "student")


def _opened(folder: Path, options: RunOptions) -> _Model:
    loaded = modelfolder.load_model(folder, device=options.device)
    tokenizer = Tokenizer.from_files(loaded.tokenizer_files, where=str(folder))
    tokenizer.check_fits(loaded.config.vocabulary, where=str(folder))
    return _Model(folder.name, loaded, prepare(loaded.model), tokenizer)


def _table(flag: str, source: str | None, model: _Model, options: RunOptions, console: Console) -> Table:
    """The data that the options name, or another source."""
    overrides = [] if source is not None else options.overrides
    if source is None and not any(o.path == "data.source" for o in overrides):
        raise UserError("on which texts?", where=flag, do="give an embedded set, a file or a folder")
    length = min(128, model.loaded.config.max_positions)
    data = {"source": source or "given by --data", "max_length": length}
    recipe = load_recipe({"name": "analyze", "data": data, "stages": [_UNUSED]}, overrides)
    table = open_table_of(recipe)
    for note in table.notes:
        console.note(note)
    return table


_UNUSED = {"kind": "finetune", "training": {"steps": 1}}  # a recipe needs a stage; nothing is trained


def _encoded(model: _Model, table: Table, split: str, rows: int) -> Examples:
    """Evenly spread rows of a split."""
    chosen = table.split(split)
    places = np.unique(np.linspace(0, len(chosen) - 1, min(rows, len(chosen))).astype(int))
    length = min(128, model.loaded.config.max_positions)
    return task_of(table.task, table.settings).encode(model.tokenizer, chosen.take(places), max_length=length)


# --- likeness of layers -----------------------------------------------------------------------------------------


def _likeness(one: _Model, other: _Model | None, examples: Examples, found: Analysis) -> None:
    """CKA of a model's layers with each other and with those of the model it was made from."""
    tokens = int(examples.offsets[-1])
    size = max(LEAST_ROWS, min(MINIBATCH, tokens // (4 * LEAST_BLOCKS)))
    inside, trimmed, across = LayerCKA(size), LayerCKA(size, without=OUTLIERS), LayerCKA(size)
    for batch, output in one.states(examples):
        inside.update(output.hidden_states)
        trimmed.update(output.hidden_states)
        if other is not None:
            across.update(other.prepared(batch, _ALL).hidden_states or (), output.hidden_states)
    names = one.layers
    title = "CKA of layer outputs, debiased, all tokens"
    _matrix("cka", title, inside, names, names, found)
    _matrix("cka-without-outliers", f"{title}, without the {OUTLIERS} widest dimensions", trimmed, names, names, found)
    if other is None:
        return
    _matrix("cka-against", f"rows: {other.name}; columns: {one.name}", across, other.layers, names, found)
    matrix = across.matrix().filled(-2.0)
    rows = []
    for place, name in enumerate(other.layers):
        best = int(matrix[place].argmax())
        rows.append((name, names[best], f"{matrix[place, best]:.3f}"))
    found.tables["lost"] = ("what is left of each layer", ((f"layer of {other.name}", "most like", "CKA"), rows))
    weakest = min(rows, key=lambda row: float(row[2]))
    found.lines.append(f"least is left of layer {weakest[0]}: CKA {weakest[2]} with layer {weakest[1]}")


def _matrix(key: str, title: str, cka: LayerCKA, rows: Sequence[str], columns: Sequence[str], found: Analysis) -> None:
    matrix = cka.matrix()
    try:
        low, high = cka.interval()
    except UndefinedError as error:
        low = high = None
        found.lines.append(f"{key}: {error}")
    figures = []
    for i, one in enumerate(rows):
        for j, other in enumerate(columns):
            ends = ("", "") if low is None or high is None else (_figure(low[i, j]), _figure(high[i, j]))
            figures.append((one, other, _figure(matrix[i, j]), *ends))
    found.tables[key] = (title, (("layer", "with layer", "CKA", "low", "high"), figures))
    found.plots[key] = heatmap(title, rows, columns, matrix.filled(np.nan).tolist())


def _figure(value: Any) -> str:
    return "undefined" if value is np.ma.masked else f"{float(value):.3f}"


# --- evenness ---------------------------------------------------------------------------------------------------


def _evenness(one: _Model, examples: Examples, found: Analysis) -> None:
    """Anisotropy of every layer's tokens, as they are, whitened, and without the top components."""
    parts: list[list[torch.Tensor]] = [[] for _ in one.layers]
    for batch, output in one.states(examples):
        for kept, state in zip(parts, output.hidden_states, strict=True):
            kept.append(rows_of(state, batch.cu_seqlens).cpu())
    drawn = torch.randperm(len(torch.cat(parts[0])), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    columns = ("layer", "mean |cosine|", "top 1 of the variance", "top 3", "top 10", "whitened", "without top 3")
    rows, counts = [], []
    for name, kept in zip(one.layers, parts, strict=True):
        x = torch.cat(kept)[drawn]
        here = anisotropy(x)
        even = anisotropy(whitened(x)).cosine, anisotropy(without_top(x, OUTLIERS)).cosine
        rows.append(
            (name, f"{here.cosine:.3f}", *(f"{s:.3f}" for s in here.shares.values()), *(f"{e:.3f}" for e in even))
        )
        counts.append((name, *map(str, here.histogram)))
        found.values[f"anisotropy/layer_{name}"] = here.cosine
    found.tables["anisotropy"] = (f"evenness of {len(drawn):,} tokens", (columns, rows))
    bins = tuple(f"{-1 + 0.1 * i:.1f}" for i in range(len(counts[0]) - 1))
    found.tables["cosines"] = ("pairs of tokens by cosine, from", (("layer", *bins), counts))


# --- probes -----------------------------------------------------------------------------------------------------


def _probed(one: _Model, source: str, options: RunOptions, console: Console, found: Analysis) -> None:
    """A linear probe with its control at every layer."""
    table = _table("--probe", source, one, options, console)
    if table.task not in PROBED:
        raise UserError(
            f"a probe needs one class a word or a row, not {table.task}", where=f"--probe {source}",
            do="use data for token-classification, classification or pair-classification",
        )  # fmt: skip
    splits = {name: _probe_rows(one, table, name) for name in PROBE_ROWS}
    rows = []
    for place, name in enumerate(one.layers):
        (x, y, kinds), (u, v, others) = ((s[0][place], s[1], s[2]) for s in splits.values())
        result = probe((x, y), (u, v), (kinds, others))
        rows.append((name, *_cells(result)))
        found.values[f"probe/{table.name}_layer_{name}"] = result.accuracy.value
        found.values[f"selectivity/{table.name}_layer_{name}"] = result.selectivity
    columns = ("layer", "accuracy x 100", "control", "selectivity", "commonest label")
    key = f"probe-{Path(table.name).name}"
    found.tables[key] = (f"linear probes on {table.name}, {table.task}", (columns, rows))


def _probe_rows(one: _Model, table: Table, split: str) -> tuple[list[torch.Tensor], np.ndarray, list[object]]:
    """(rows of each layer, classes, kinds): a word's first piece each, of its piece; or a text's mean, of its last."""
    examples = _encoded(one, table, split, PROBE_ROWS[split])
    parts: list[list[torch.Tensor]] = [[] for _ in one.layers]
    labels, kinds, seen = [], [], 0
    per_word = table.task == "token-classification"
    for batch, output in one.states(examples):
        assert batch.labels is not None
        wanted = torch.from_numpy(np.flatnonzero((batch.labels != UNLABELLED).numpy()))
        for kept, state in zip(parts, output.hidden_states, strict=True):
            taken = state if per_word else rows_of(state, batch.cu_seqlens, "mean")
            kept.append(taken[wanted].cpu())
        labels.append(batch.labels[wanted].numpy())
        pieces = batch.input_ids if per_word else batch.input_ids[batch.cu_seqlens[1:] - 2]
        kinds += pieces[wanted].tolist()
        seen += len(wanted)
        if per_word and seen >= PROBE_TOKENS:
            break
    return [torch.cat(kept) for kept in parts], np.concatenate(labels), kinds


def _cells(p: Probed) -> tuple[str, ...]:
    a = p.accuracy
    shown = f"{100 * a.value:.1f} [{100 * a.low:.1f}, {100 * a.high:.1f}]"
    return shown, f"{100 * p.control.value:.1f}", f"{100 * p.selectivity:+.1f}", f"{100 * p.baseline:.1f}"


# --- telling ----------------------------------------------------------------------------------------------------


def _tell(found: Analysis, output: Path, name: str, table: Table, options: RunOptions, console: Console) -> None:
    with open_asked(
        output,
        options,
        method="analyze",
        role="summary",
        warn=console.warn,
    ) as log:
        log.params({"method": "analyze", "model": name})
        log.dataset(f"{table.name}/train", table.fingerprint, table.name, "evaluation")
        _write(found, output, log)
    for key, (title, (columns, rows)) in found.tables.items():
        if not key.startswith("cka") and key != "cosines":
            console.table(title, columns, rows)
    for line in [*found.lines, f"plots and tables: {output}"]:
        console.result(line)
    shown = {key: {"columns": list(t[0]), "data": [list(r) for r in t[1]]} for key, (_, t) in found.tables.items()}
    console.document({"folder": str(output), "tables": shown, "notes": found.lines})


def _write(found: Analysis, output: Path, log: TrackedRun) -> None:
    for key, svg in found.plots.items():
        atomic.write_text(output / f"{key}.svg", svg)
        log.artifact(output / f"{key}.svg")
    for key, (_, (columns, rows)) in found.tables.items():
        log.table(output / f"{key}.json", columns, rows)
    log.metrics(found.values)
    told = [f"### {title}\n\n{markdown(*rows)}" for k, (title, rows) in found.tables.items() if not k.startswith("c")]
    log.note("\n\n".join([*told, *found.lines]))
