"""What a cascade, or a model with early exits, was measured to be, on test rows: certificate.json in its
folder."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import compress
from compress.cascade.candidates import Candidate
from compress.cascade.request import CascadeRequest
from compress.data.tables.label_order import have_same_labels
from compress.data.text.texts import find_overlap
from compress.errors import UserError, format_count
from compress.measure.cost import CostPlan
from compress.measure.measured_model import MeasuredModel
from compress.measure.models import measure
from compress.measure.subject import Subject
from compress.modelfolder import cascade as cascades
from compress.modelfolder import folder as modelfolder
from compress.onnx.runtimes import versions
from compress.predict.real_texts import choose_calls, sample_texts
from compress.report.certified import format_ends, format_metric, read_ends
from compress.report.rows import title
from compress.stages.shared.proof import SPLIT, describe_bound, describe_tests, format_points
from evaluation.cost.device import describe
from evaluation.thresholds import Selection

FORMAT, EXITS_FORMAT = "cascade-1", "exits-1"
METHODS = {FORMAT: cascades.METHOD, EXITS_FORMAT: "early_exit"}
"""Format → the method of the model and of its run."""
CERTIFIED, EXCEEDED = "certified", "exceeded"
REPEATS, SECONDS = 20, 10.0
THROUGHPUT = 64
"""Rows that throughput is measured on: it is not what a cascade is for."""
LATENCIES = {"mean": "speed/latency_mean_ms", "p50": "speed/latency_p50_ms", "p95": "speed/latency_p95_ms",
             "tokenization": "speed/tokenization_ms"}  # fmt: skip


@dataclass(frozen=True)
class MeasuredCascade:
    """parent, cascade: their figures on the test rows.  answered: rows that each model of the cascade answers, or each
    exit and the model itself."""

    parent: MeasuredModel
    cascade: MeasuredModel
    answered: Sequence[int]


def measure_cascade(request: CascadeRequest, folder: Path, name: str, parent: Candidate) -> MeasuredCascade:
    """`measure_beside` of a cascade, and who answers how many rows.

    name: of the cascade, for people. Raises UserError where the parent has the labels in another order than the table.
    """
    table = request.table
    if not have_same_labels(modelfolder.inspect(parent.folder).label_names, table.label_names):
        raise UserError(
            "the largest models have the same labels in different orders", where=parent.name, do="remove one of them"
        )
    theirs, ours = measure_beside(request, Subject(name, folder, "student", runtime=request.runtime), parent)
    return MeasuredCascade(theirs, ours, ours.by_model)


def measure_beside(request: CascadeRequest, subject: Subject, parent: Candidate) -> list[MeasuredModel]:
    """The parent and what was made of it: quality on all test rows, row by row; latency on a sample of their texts, in
    turn."""
    table, console = request.table, request.console
    rows, dataset = table.split("test"), f"{table.display_name}/test"
    subjects = [Subject(parent.name, parent.folder, "teacher", runtime=parent.predictor.runtime), subject]
    read: dict[str, Any] = {"digest": table.measured_fingerprint, "max_length": request.max_length}
    texts = sample_texts(rows, data=dataset, **read, calls=choose_calls([subject.folder]))
    return measure(
        subjects, rows, task=table.task, label_names=table.label_names, dataset=dataset, **read,
        cost=CostPlan(texts=texts, repeats=REPEATS, seconds=SECONDS, warmup=1, throughput_rows=THROUGHPUT),
        settings=dict(request.settings), device=request.device, say=console.note, watch=request.watch,
    )  # fmt: skip


def issue(
    request: CascadeRequest,
    stages: Sequence[Mapping[str, Any]],
    selected: Selection,
    parent: Candidate,
    found: MeasuredCascade,
    kind: str = FORMAT,
) -> dict[str, Any]:
    """The content of the certificate. stages: what answers in turn.  kind: FORMAT or EXITS_FORMAT."""
    choice = selected.choice
    ours, theirs = found.cascade.measurement, found.parent.measurement
    metric, values = found.cascade.metric, {k: x for k, x in ours.values.items() if math.isfinite(x)}
    difference = read_ends(values, f"vs_teacher/{metric}_difference")
    rows = sum(found.answered)
    validation, test = (request.table.split(name) for name in (SPLIT, "test"))
    drop = None if difference["value"] is None else -100 * difference["value"]
    return {
        "format": kind,
        "status": CERTIFIED if drop is not None and drop <= request.max_drop else EXCEEDED,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "bounds": {
            "max_drop": request.max_drop, "confidence": None if request.rows_chose_models else request.confidence,
        },
        "stages": [
            {**stage, "rows": count, "share": count / rows}
            for stage, count in zip(stages, found.answered, strict=True)
        ],
        "chosen_on": {
            "split": SPLIT, "rows": len(validation), "tested_on": selected.rows,
            "shared_rows": int(find_overlap(test, [validation], exact=True).sum()),
            "tested": selected.tested, "loss": choice.loss, "p_value": choice.p_value, "expected_ms": choice.ms,
        },
        "size_mb": values["size/disk_mb"],
        "latency": {key: values.get(name) for key, name in LATENCIES.items()}
        | {"quiet": ours.context["contaminated"] == theirs.context["contaminated"] == "no"},
        "speedup": values.get("vs_teacher/speedup"),
        "quality": {"metric": metric, **read_ends(values, f"quality/{metric}")},
        "difference": {**difference, "p_value": values.get("vs_teacher/p_value")},
        "rows": rows,
        "dataset": ours.context["dataset"],
        "dataset_digest": ours.context["dataset_digest"],
        "parent": {
            "name": parent.name, "fingerprint": modelfolder.fingerprint(parent.folder),
            "size_mb": theirs.values["size/disk_mb"], "quality": theirs.values.get(f"quality/{metric}"),
            "latency": {key: theirs.values.get(name) for key, name in LATENCIES.items()},
        },
        "runtime": ours.context["runtime"],
        "device": describe(request.device),
        "versions": {"compress": compress.__version__, **{k: v for k, v in versions().items() if v is not None}},
    }  # fmt: skip


def sentences(found: Mapping[str, Any]) -> list[str]:
    """What it says, for people."""
    quality = found["quality"]
    lines = [f"{found['status']}: {_describe_loss(found)}", _describe_latency(found), _describe_shares(found["stages"])]
    shown = format_metric(quality, quality["metric"])
    lines.append(f"{shown} on {format_count(found['rows'])} of {found['dataset']}")
    lines.append(f"size {found['size_mb']:.2f} MB" + ("" if has_exits(found) else ", all models together"))
    return [*lines, describe_choice(found), describe_guarantee(found)]


def _describe_loss(found: Mapping[str, Any]) -> str:
    """What was lost on the test rows, beside the bound."""
    metric, bound = title(found["quality"]["metric"]), format_points(found["bounds"]["max_drop"])
    value = found["difference"]["value"]
    if value is None:
        return f"the loss of {metric} on the test rows is undefined; the bound is {bound}"
    change = f"{100 * abs(value):.2f} points of {metric} {'gained' if value > 0 else 'lost'} on the test rows"
    return f"{change}, {'above' if found['status'] == EXCEEDED else 'within'} the bound of {bound}"


def has_exits(found: Mapping[str, Any]) -> bool:
    """Whether it is of a model with early exits, not of a cascade."""
    return found.get("format") == EXITS_FORMAT


def describe_choice(found: Mapping[str, Any]) -> str:
    """What the choice of the thresholds guarantees and for which models, on which rows it was made, and how."""
    chosen, order = found["chosen_on"], "from the safest to the boldest"
    rows, testing = chosen["rows"], chosen["tested_on"]
    tests = describe_tests("thresholds", order, rows, testing, chosen["tested"], chosen["p_value"])
    return f"{_describe_confidence(found)}. {tests}"


def _describe_confidence(found: Mapping[str, Any]) -> str:
    """The guarantee, which does not hold for models that the rows that test chose."""
    sure = found["bounds"]["confidence"]
    if sure is None:
        return (
            f"the loss is checked on the test rows only: the {SPLIT} rows chose the models as well as the thresholds, "
            "so they guarantee nothing about other texts"
        )
    models = "the model was" if has_exits(found) else "the models were"
    return describe_bound(found["bounds"]["max_drop"], sure, models)


def describe_guarantee(found: Mapping[str, Any]) -> str:
    """Which guarantee the test rows give, why it holds, and whether it proves the bound."""
    difference, chosen = found["difference"], found["chosen_on"]
    if difference["value"] is None:
        return "no guarantee: the difference to the parent is undefined on these rows"
    most, bound = 0 - 100 * difference["low"], found["bounds"]["max_drop"]
    metric = title(found["quality"]["metric"])
    if found["status"] == EXCEEDED:
        proof = f"and the bound of {format_points(bound)} is not met"
    elif most <= bound:
        proof = f"so the bound of {format_points(bound)} is proven at this level"
    elif (sure := found["bounds"]["confidence"]) is None:
        proof = f"so the bound of {format_points(bound)} is met on these rows and not proven for others"
    else:
        proof = (
            f"so the test rows alone do not prove the bound of {format_points(bound)} at this level; its {sure:g} % "
            f"confidence comes from the {chosen['split']} rows"
        )
    what = "exits" if has_exits(found) else "models, temperatures"
    shared = chosen.get("shared_rows", 0)
    except_for = (
        f", except that {format_count(shared, 'test row')} of {found['rows']:,} were among them" if shared else ""
    )
    loss = f"at most {most:.2f} points are lost" if most >= 0 else f"at least {-most:.2f} points are gained"
    points = f"{format_ends(difference, 100, '+')} points of {metric} (paired 95 % interval)"
    return (
        f"against the parent {points}: on texts like these {loss}, {proof}. "
        f"The interval holds because {what} and thresholds were chosen "
        f"on {format_count(chosen['rows'], chosen['split'] + ' row')} before a test row was read{except_for}"
    )


def _describe_latency(found: Mapping[str, Any]) -> str:
    latency, parent, speedup = found["latency"], found["parent"]["latency"], found["speedup"]
    if latency["mean"] is None:
        return "latency unknown: the machine was busy"
    how = "" if latency["quiet"] else ", on a busy machine"
    line = (
        f"mean {latency['mean']:.2f} ms for a text, {latency['tokenization']:.2f} of them tokenization; "
        f"median {latency['p50']:.2f}, p95 {latency['p95']:.2f}{how}"
    )
    if parent["mean"] is not None:
        name, mean = found["parent"]["name"], parent["mean"]
        faster = "" if speedup is None else f"; {speedup:.2f}x the speed of {name} by the median rounds"
        line += f"{faster}; the mean of {name} is {mean:.2f} ms"
    return line


def _describe_shares(stages: Sequence[Mapping[str, Any]]) -> str:
    return "answered by " + ", ".join(f"{s['name']} {100 * s['share']:.1f} %" for s in stages) + " of the rows"


def describe_stage(stage: Mapping[str, Any]) -> str:
    """A sentence of the model card."""
    rule = "all others" if stage["threshold"] is None else f"texts with a confidence above {stage['threshold']:.4f}"
    return f"{stage['name']} ({stage['folder']}): {rule}, {100 * stage['share']:.1f} % of the test rows"
