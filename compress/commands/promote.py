"""`compress promote`: the model that meets the stated gates gets an alias in the registry; one that misses them not."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compress.commands.evaluate import evaluate
from compress.compare.rows import LATENCY, MEAN
from compress.console import Console
from compress.contracts import FAKE, Measurement, RunOptions
from compress.data.tasks import example_of
from compress.errors import ExitCode, UserError
from compress.measure.measured_model import GAP
from compress.modelfolder.cascade import inspect
from compress.modelfolder.meta import FolderMeta, MeasurementNote
from compress.modelfolder.names import model_label
from compress.modelfolder.resolve import resolve
from compress.modelfolder.sentence_files import identity
from compress.onnx.model_file import require_publishable
from compress.predict.service import columns_of
from compress.report.rows import headline, title
from compress.tracking import experiment, registering, resolve_store
from compress.tracking.pyfunc import write_loader
from evaluation.cost.device import describe

BOOTSTRAP = 1000


@dataclass(frozen=True)
class Gates:
    """What a model must not exceed; None: not asked. drop: points (hundredths) of the main metric against the teacher.

    sure: drop and gap must hold for their whole 95 % intervals.  gap: points between the best and the worst group.
    group_column: what these groups are told apart by; None: as the model was measured.
    """

    drop: float | None = None
    mb: float | None = None
    ms: float | None = None
    sure: bool = False
    gap: float | None = None
    group_column: str | None = None


@dataclass(frozen=True)
class Figure:
    """One gate and what a model has. excess: by what share of the gate it is missed; 0 or less: met."""

    flag: str
    name: str
    value: float
    most: float
    unit: str
    more: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.most

    @property
    def excess(self) -> float:
        return 0.0 if self.met else (self.value - self.most) / max(abs(self.most), 1e-9)

    def sentence(self) -> str:
        word = "within" if self.met else "over"
        shown = f"{round(self.value, 2) + 0.0:g}"  # never -0
        if (float(shown) <= self.most) != self.met:  # rounded, it would say the opposite
            shown = f"{self.value:.6g}"
        unit = "point" if (self.most, self.unit) == (1, "points") else self.unit
        return f"{self.name} {shown}{self.more} {word} the limit of {self.most:g} {unit}"


@dataclass(frozen=True)
class CheckedModel:
    """A model with its figures at the gates. name: as the command line says it."""

    name: str
    folder: Path
    meta: FolderMeta
    measured: MeasurementNote | None
    figures: Sequence[Figure]

    @property
    def failing(self) -> list[Figure]:
        return [f for f in self.figures if not f.met]

    def sentence(self) -> str:
        return f"{self.name}: {'; '.join(f.sentence() for f in (*self.failing, *(f for f in self.figures if f.met)))}"


def promote(
    models: Sequence[str],
    alias: str,
    name: str | None,
    gates: Gates,
    options: RunOptions,
    *,
    against: str | None = None,
    split: str = "test",
    replace: bool = False,
    pyfunc: bool | None = None,
) -> registering.Version | None:
    """Give `alias` to the one of `models` that meets the gates, of several to the best by its main metric.

    Returns the version that holds it, None after a dry run. With --data in the options they are measured first, else
    their folders' own figures count. Raises UserError when none meets the gates (naming the nearest), when a figure is
    not known, and when another version holds the alias, unless `replace`.
    """
    registering.check_alias(alias)
    console = Console(quiet=options.quiet, json=options.json)
    console.listen()
    fresh = any(o.path == "data.source" for o in options.overrides)
    if fresh and gates.drop is not None and against is None:
        raise UserError(
            "--data measures the models again, and the drop is that from a teacher",
            where="--max-drop",
            do="add --against TEACHER, or remove --data to use the figures in the folders",
        )
    judged = [_check_gates(model, gates, against, split, options, fresh) for model in models]
    chosen = _choose_best(judged, gates)
    if chosen.figures:
        console.result(f"gates passed by {chosen.sentence()}")
    require_publishable(chosen.folder)
    name = registering.format_registered_name(name or _suggest_name(chosen))
    store = resolve_store(options.tracking_uri)
    fingerprint = identity(chosen.folder)
    held = registering.holder(store, name, alias)
    told = {"name": name, "alias": alias, "model": str(chosen.folder), "fingerprint": fingerprint}
    same = held is not None and held.fingerprint == fingerprint
    if held is not None and same and (held.flavour or pyfunc is False):
        console.result(f"{chosen.name} is already version {held.number} of '{name}' with alias {alias}")
        console.document({**told, "version": held.number, "changed": False})
        return held
    if held is not None and not same and not replace:
        raise UserError(
            f"version {held.number} of '{name}' already has this alias",
            where=f"--as {alias}",
            why=_describe_version(held),
            do="add --replace to move it, or choose another alias or --name",
            code=ExitCode.REFUSED,
        )
    moved = f", instead of version {held.number}" if held is not None and not same else ""
    if options.dry_run:
        console.result(f"would register {chosen.name} as '{name}' with alias {alias}{moved}")
        console.document({**told, "version": None, "changed": False})
        return None
    with tempfile.TemporaryDirectory() as scratch:
        loader = (
            None if pyfunc is False else _write_loader(chosen.folder, Path(scratch), console, required=pyfunc is True)
        )
        candidate = _build_candidate(chosen, loader, fingerprint)
        version = registering.promote(store, name, alias, candidate, experiment(options), console.warn)
    console.result(f"{chosen.name} is version {version.number} of '{name}' with alias {alias}{moved}")
    named = f"MLFLOW_TRACKING_URI={store.shown} "
    there = "" if options.tracking_uri is None else named
    meta = inspect(chosen.folder).meta
    example = example_of(meta.task, meta.columns) + (" --embeddings" if meta.task is None else "")
    console.result(f"use it   {there}compress predict models:/{name}@{alias} {example}")
    if version.flavour:
        console.result(f"load it  mlflow.pyfunc.load_model('models:/{name}@{alias}')")
        console.result(f"serve it {named}mlflow models serve -m models:/{name}@{alias} --env-manager local")
    console.document({**told, "version": version.number, "changed": True})
    return version


def _write_loader(folder: Path, scratch: Path, console: Console, *, required: bool) -> Path | None:
    """The files by which MLflow loads the model; None, with a note, for one that no service answers with."""
    try:
        return write_loader(scratch / "loader", folder, columns_of(folder))
    except UserError as error:
        if required:
            raise
        console.note(f"mlflow.pyfunc will not load this version: {error.line()}")
        return None


def _check_gates(
    model: str, gates: Gates, against: str | None, split: str, options: RunOptions, fresh: bool
) -> CheckedModel:
    folder = resolve(model, options.tracking_uri)
    meta = inspect(folder).meta
    measured = meta.measurement
    if fresh:
        plain = dataclasses.replace(options, tracking_uri=None, experiment=None, output=None, json=False, dry_run=False)
        parent = None if against is None else str(resolve(against, options.tracking_uri))
        found = evaluate(str(folder), parent, split, BOOTSTRAP, plain, group_column=gates.group_column)[-1].measurement
        measured = meta.with_measurement(found).measurement
    return CheckedModel(model, folder, meta, measured, _list_figures(model, folder, gates, measured, fresh))


def _list_figures(
    model: str, folder: Path, gates: Gates, measured: MeasurementNote | None, fresh: bool
) -> list[Figure]:
    values, context = (measured.values, measured.context) if measured else ({}, {})
    found = []
    if gates.drop is not None:
        metric = _find_metric(measured)
        key = f"vs_teacher/{metric}_difference"
        key = key if key in values else FAKE + key
        if key not in values:
            raise _report_unmeasured(model, "--max-drop", "the drop from the teacher", "--data DATA --against TEACHER")
        low, high = (0.0 - 100 * values.get(f"{key}_{end}", values[key]) for end in ("high", "low"))
        if gates.sure and low == high:  # earlier versions took equal figures on a few rows for certain
            raise UserError(
                "the drop from the teacher has no interval", where=f"--max-drop --sure, {model}",
                do="measure it again: add --data DATA --against TEACHER",
            )  # fmt: skip
        simulated = ", simulated" if key.startswith(FAKE) else ""
        value = (high if gates.sure else -100 * values[key]) + 0.0  # never -0
        name = f"{'upper bound of the ' if gates.sure else ''}drop of {title(metric)}"
        more = f" [{low:.2f}, {high:.2f}]{simulated}"
        found.append(Figure("--max-drop", name, value, gates.drop, "points", more))
    if gates.gap is not None:
        found.append(_check_gap(model, gates, values, context))
    if gates.mb is not None:
        size = values.get("size/disk_mb", inspect(folder).disk_mb)
        found.append(Figure("--max-mb", "size on disk", size, gates.mb, "MB"))
    if gates.ms is not None:
        if context.get("contaminated") == "yes":
            do = "measure again when the machine is idle, or with --threads 1"
            raise UserError(
                "the latency is unknown: other programs used the processor while it was measured",
                where=f"--max-ms, {model}", do=do if fresh else "add --data DATA to measure it again",
            )  # fmt: skip
        # Of texts the mean, as `fit --max-ms` and the verdict of `compare`: a cascade's median is its first model's.
        key, name = (MEAN, "mean latency") if MEAN in values else (LATENCY, "latency p50")
        if key not in values:
            raise _report_unmeasured(model, "--max-ms", "the latency", "--data DATA")
        here = describe("cpu")["device"]
        if not fresh and context.get("device_kind", "cpu") == "cpu" and context.get("device") != here:
            raise UserError(
                f"the latency of {model} was measured on {context.get('device')}", where="--max-ms",
                why=f"this machine has {here}", do="add --data DATA to measure it here",
            )  # fmt: skip
        threads = "1 thread" if context.get("threads") == "1" else f"{context.get('threads')} threads"
        more = f" ms ({context.get('latency_shape', '')}, {context.get('runtime', '')}, {threads})"
        found.append(Figure("--max-ms", name, values[key], gates.ms, "ms", more))
    return found


def _check_gap(model: str, gates: Gates, values: Mapping[str, float], context: Mapping[str, str]) -> Figure:
    """The largest gap between groups. Raises UserError where it has not been measured."""
    key = GAP if GAP in values else FAKE + GAP
    if key not in values:
        if gates.group_column is None:
            raise _report_unmeasured(model, "--max-gap", "the gap between groups", "--data DATA --group-column COLUMN")
        raise UserError(
            "the gap between groups is unknown", where=f"--max-gap, {model}",
            why="fewer than two groups are large enough to compare", do="use more rows or a column with fewer values",
            code=ExitCode.REFUSED,
        )  # fmt: skip
    value, low, high = (100 * values.get(f"{key}{end}", values[key]) for end in ("", "_low", "_high"))
    name = f"{'upper bound of the ' if gates.sure else ''}gap between groups by {context.get('group_column', 'group')}"
    more = f" [{low:.2f}, {high:.2f}]{', simulated' if key.startswith(FAKE) else ''}"
    return Figure("--max-gap", name, high if gates.sure else value, gates.gap or 0.0, "points", more)


def _report_unmeasured(model: str, flag: str, what: str, do: str) -> UserError:
    return UserError(f"{what} has not been measured", where=f"{flag}, {model}", do=f"measure it: add {do}")


def _choose_best(judged: Sequence[CheckedModel], gates: Gates) -> CheckedModel:
    """The best of those that meet all gates."""
    able = [j for j in judged if not j.failing]
    if not able:
        nearest = min(judged, key=lambda j: sum(f.excess for f in j.figures))
        what = (
            "the model does not pass the gates"
            if len(judged) == 1
            else f"none of {len(judged)} models passes the gates"
        )
        label = "" if len(judged) == 1 else "the closest is "
        raise UserError(what, why=label + nearest.sentence(), code=ExitCode.REFUSED)
    if len(able) == 1:
        return able[0]
    grounds = {_identify_rows(j) for j in able}
    if len(grounds) > 1 or None in grounds:
        do = "add --data DATA to measure them on the same rows"
        raise UserError(f"{len(able)} models pass the gates but were not measured on the same data", do=do)
    return max(able, key=lambda j: (_get_quality(j.measured), -inspect(j.folder).disk_mb))


def _identify_rows(judged: CheckedModel) -> tuple[str, str] | None:
    context = judged.measured.context if judged.measured else {}
    metric = _find_metric(judged.measured)
    return (context["dataset_digest"], metric) if "dataset_digest" in context and metric else None


def _get_quality(measured: MeasurementNote | None) -> float:
    assert measured is not None
    metric = _find_metric(measured)
    return measured.values.get(f"quality/{metric}", measured.values.get(f"{FAKE}{metric}", float("-inf")))


def _find_metric(measured: MeasurementNote | None) -> str:
    """The main metric of what was measured; empty where that cannot be told."""
    if measured is None:
        return ""
    end = "_difference"
    compared = [k.rpartition("/")[2].removesuffix(end) for k in measured.values if k.endswith(end)]
    return measured.context.get("metric") or (compared[0] if len(set(compared)) == 1 else "")


def _suggest_name(chosen: CheckedModel) -> str:
    """What the model is for: the data that it was trained on; else the folder's name."""
    if chosen.meta.data is not None and chosen.meta.data.name:
        return Path(chosen.meta.data.name.rpartition(":")[2]).stem
    return model_label(chosen.folder)


def _build_candidate(chosen: CheckedModel, loader: Path | None, fingerprint: str) -> registering.Candidate:
    measured = chosen.measured
    context = measured.context if measured else {}
    dataset = (
        (context["dataset"], context["dataset_digest"]) if {"dataset", "dataset_digest"} <= context.keys() else None
    )
    metric = _find_metric(measured)
    wanted = (f"quality/{metric}", "size/disk_mb", LATENCY, MEAN, f"vs_teacher/{metric}_difference")
    values: Mapping[str, float] = measured.values if measured else {}
    shape = inspect(chosen.folder).config
    facts = {key: f"{values[key]:.6g}" for key in wanted if key in values}
    if chosen.figures:
        facts["compress.gates"] = "; ".join(f.sentence() for f in chosen.figures)
    return registering.Candidate(
        folder=chosen.folder,
        name=model_label(chosen.folder),
        loader=loader,
        fingerprint=fingerprint,
        method=chosen.meta.method or "model",
        figures=values,
        dataset=dataset,
        params={"student.layers": shape.depth, "student.hidden": shape.hidden},
        context={**context, "metric": metric} if metric else context,
        facts=facts,
    )


def _describe_version(held: registering.Version) -> str:
    """Its figures, which `_build_candidate` chose."""
    values: dict[str, float] = {}
    for key in (key for key in held.tags if "/" in key):
        with contextlib.suppress(ValueError):  # tags may be set by anybody
            values[key] = float(held.tags[key])
    metric = next((key.partition("/")[2] for key in values if key.startswith("quality/")), "")
    shown = headline(Measurement(values, {"metric": metric}))
    return shown or f"fingerprint {held.fingerprint[:12] or 'unknown'}"
