"""Saved MLflow views of an experiment and the commands and links that open them.

Three views: the trade-offs of the models, one model's lineage, one contest of criteria. A saved view is an experiment
tag `mlflow.sharedViewState.<key>` holding the state of MLflow's runs page. The format is MLflow's own and undocumented
(read from version 3.17): it is best effort, and a run never fails over it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import shlex
import time
import zlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from compress.tracking.names import slug
from compress.tracking.store import Store

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

TAG = "mlflow.sharedViewState."
PREFIX = "compress-"
NAME = "Quality, size, latency"
DEFAULT_QUALITY = "quality/accuracy"
SIZE = "size/disk_mb"
LATENCY = "speed/latency_p50_ms"
PARAMS = ("method", "student.layers")
BARS = {
    SIZE: "size on disk, MB",
    "size/params_m": "parameters, millions",
    LATENCY: "latency p50, ms",
    "speed/throughput_sps": "throughput, rows/s",
    "vs_teacher/size_ratio": "times smaller than the parent",
    "vs_teacher/speedup": "times faster than the parent",
}
"""Figure → title of its card. No quality: bars begin at 0, where differences of a point are not seen."""
COLUMNS = (SIZE, LATENCY, "vs_teacher/size_ratio", "vs_teacher/speedup")
COLUMN_PIXELS = 150
DEPLOYABLE, PARETO = "deployable", "pareto"
"""Tags of a run. DEPLOYABLE: YES for a model that could be shipped, one run for each model; STAGE for a stage of one;
NO for the rest: references, controls, summaries, further runs of the same model."""
YES, STAGE, NO = "yes", "stage", "no"
DATE = "attributes.start_time"


@dataclass(frozen=True)
class SavedView:
    """key: of its tag.  name: for people.  state: of the runs page."""

    key: str
    name: str
    state: dict[str, Any]


def view_key(quality: str = DEFAULT_QUALITY, data: str | None = None) -> str:
    """Name of the view whose quality axis is this metric: one an experiment for each kind of task in it. data: the data
    set that its models were measured on, where it is not the first one."""
    return "-".join([PREFIX + slug(quality.rsplit("/", 1)[-1]), *([slug(data)] if data else [])])


def newest_view(tags: Mapping[str, str]) -> str | None:
    """The key of the saved view that was written last. tags: of the experiment."""
    made: dict[str, int] = {}
    for tag, value in tags.items():
        if tag.startswith(TAG + PREFIX):
            try:
                made[tag.removeprefix(TAG)] = int(json.loads(value)["createdAt"])
            except (ValueError, KeyError, TypeError):
                continue  # not as we wrote it
    return max(made, key=lambda v: made[v]) if made else None


def deep_link(
    host: str, port: int | None, experiment_id: str, view: str | None = view_key(), *, charts: bool = True
) -> str:
    """Address of the runs page with a saved view; `host` may be a whole address of a server (then `port` is None).

    charts: opened on its charts, not on its table.
    """
    base = host.rstrip("/") if "://" in host else f"http://{f'[{host}]' if ':' in host else host}:{port}"
    share = f"&viewStateShareKey={quote(view)}" if view else ""
    page = f"experiments/{quote(experiment_id)}/runs?workflowType=machine_learning{share}"
    page += "&compareRunsMode=CHART" if charts else ""
    return f"{base}/#/{page}"


def ui_lines(store: Store, experiment: str) -> list[str]:
    """What to type to see the runs: our own command, then MLflow's with the same store."""
    if store.is_server:
        return [f"compress ui --experiment {shlex.quote(experiment)}   # the server is {store.shown}"]
    address = '"$MLFLOW_TRACKING_URI"' if store.has_secret else shlex.quote(store.uri)
    ours = f"compress ui --experiment {shlex.quote(experiment)}"
    if store.chosen == "--tracking-uri":
        ours += f" --tracking-uri {address}"
    return [ours, f"mlflow ui --backend-store-uri {address}"]


def ensure_view(client: MlflowClient, experiment_id: str, quality: str, tags: Mapping[str, str] | None = None) -> None:
    """Writes the view of trade-offs, of all runs, where there is none; a failure is only logged.

    Once a run has ended, the view shows the models (`compare.firstpage`). tags: of the experiment, if they are known.
    """
    try:
        there = client.get_experiment(experiment_id).tags if tags is None else tags
        for tag, value in new_view(quality).items():
            if tag not in there:
                client.set_experiment_tag(experiment_id, tag, value)
    except Exception as error:
        log.info("the saved view was not written: %s", error)


def new_view(quality: str) -> dict[str, str]:
    """The view of trade-offs, of all runs, as tags of an experiment."""
    return {TAG + view_key(quality): view_tag(view_state(quality))}


def write_view(
    client: MlflowClient,
    experiment_id: str,
    key: str,
    page: dict[str, Any],
    name: str,
    tags: Mapping[str, str] | None = None,
    *,
    again: bool = False,
) -> bool:
    """Writes a saved view unless it is there as we would write it; returns whether it wrote. tags: of the experiment,
    if they are known.  again: write it in any case, as the newest view is what opens. Raises what the client raises."""
    tag = TAG + key
    old = (client.get_experiment(experiment_id).tags if tags is None else tags).get(tag)
    state = pack_state(page)
    written = again or old is None or json.loads(old).get("state") != state
    if written:
        client.set_experiment_tag(experiment_id, tag, view_tag(state, name))
    return written


def view_tag(state: str, name: str = NAME) -> str:
    """Value of the experiment tag."""
    now = int(time.time() * 1000)
    return json.dumps({"name": name, "createdAt": now, "updatedAt": now, "state": state})


def view_state(quality: str = DEFAULT_QUALITY) -> str:
    """The packed state of the view of trade-offs; the same text for the same quality."""
    return pack_state(page_state(quality))


def pack_state(page: dict[str, Any]) -> str:
    """A state of the runs page as the tag holds it."""
    return "deflate;" + base64.b64encode(zlib.compress(json.dumps(page).encode())).decode()


def page_state(
    quality: str = DEFAULT_QUALITY, *, search: str = "", known: Container[str] | None = None, nested: bool = True
) -> dict[str, Any]:
    """The view of trade-offs: columns, order, and the charts in four sections.

    search: which runs it shows; the page removes it with one click.  known: figures that each of these runs has; a card
    of another figure is left out, as its legend would name runs that it does not draw; None: all.  nested: whether runs
    hang below the run that they belong to, which the page does only in the order of time; else the best is first.
    """
    sections = [
        _section("Trade-offs", columns=1, height=420),  # one: in two, a small screen cuts the titles of the cards
        _section("All at once", columns=1, height=360),
        _section("Size and speed", columns=1, height=300),
        _section("Training curves", columns=2, height=360),
    ]
    trade_offs, all_at_once, side_by_side, curves = (s["uuid"] for s in sections)
    short = quality.rsplit("/", 1)[-1]
    costs = [key for key in (LATENCY, SIZE) if known is None or key in known]
    bars = {key: title for key, title in BARS.items() if known is None or key in known}
    cards = [
        *(_card("SCATTER", trade_offs, f"{short} vs {k}", xaxis=_metric(k), yaxis=_metric(quality)) for k in costs),
        _card(
            "PARALLEL",
            all_at_once,
            f"method, parameters, size, latency, {short}",
            selectedParams=["method"],  # a run without one of these is left out, so only what every run has
            selectedMetrics=["size/params_m", SIZE, LATENCY, quality],
            showAllRuns=True,
        ),
        *(_card("BAR", side_by_side, title, metricKey=key) for key, title in bars.items()),
        *(_curve(curves, key) for key in ("train/loss", f"val/{short}")),
    ]
    columns = [
        _column("tags", PARETO),
        *(_column("metrics", k) for k in (quality, *COLUMNS)),
        *(_column("params", k) for k in PARAMS),
    ]
    order = DATE if nested else _column("metrics", quality)
    page = _page(columns, sections, cards, order=order, search=search)
    # By itself the page shows metrics first, tags out of sight, and every name cut.
    return page | {"columnOrder": columns, "columnWidths": dict.fromkeys(columns, COLUMN_PIXELS)}


def lineage_state(quality: str, run_ids: Sequence[str]) -> dict[str, Any]:
    """The view of one model's lineage: these runs from the largest model to the smallest, and what each step cost."""
    section = _section("Step by step", columns=3, height=300)
    cards = [_card("BAR", section["uuid"], key, metricKey=key) for key in (quality, "size/params_m", *BARS)]
    columns = [
        *(_column("metrics", k) for k in (quality, SIZE, LATENCY, "vs_teacher/quality_kept_pct")),
        *(_column("params", k) for k in ("student.layers", "student.hidden")),
        _column("tags", "compress.method"),
    ]
    which = ", ".join(f"'{run_id}'" for run_id in run_ids)
    search = f"attributes.run_id IN ({which})"
    # Not by the time they began: the page then folds stages into the run above them, where they are not seen.
    return _page(columns, [section], cards, order=_column("metrics", SIZE), search=search)


def criteria_state(quality: str, run_id: str) -> dict[str, Any]:
    """The view of a contest: every cut that was recovered, the best first, by criterion, depth and seed.

    run_id: of the contest's own run, which those of the cuts hang below.
    """
    section = _section("Quality by depth", columns=2, height=420)
    short = quality.rsplit("/", 1)[-1]
    layers = {"key": "student.layers", "type": "PARAM"}
    cards = [
        _card("SCATTER", section["uuid"], f"{short} vs layers", xaxis=layers, yaxis=_metric(quality)),
        _card("SCATTER", section["uuid"], f"{short} vs latency", xaxis=_metric(LATENCY), yaxis=_metric(quality)),
    ]
    columns = [  # few: the page shows metrics first, and the criterion would be out of sight
        *(_column("metrics", k) for k in (quality, "vs_teacher/quality_kept_pct")),
        *(_column("params", k) for k in ("student.layers", "seed")),
        _column("tags", "compress.criteria"),
    ]
    search = f"tags.`compress.parent_run` = '{run_id}'"
    return _page(columns, [section], cards, order=_column("metrics", quality), search=search)


def _page(
    columns: list[str],
    sections: list[dict[str, Any]],
    cards: list[dict[str, Any]],
    *,
    order: str,
    search: str = "",
) -> dict[str, Any]:
    return {
        "searchFilter": search,
        "orderByKey": order,
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": columns,
        "columnOrder": [],
        "columnWidths": {},
        "runsHiddenMode": "SHOW_ALL",
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": True,  # else the sections are sorted by name
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": None,
        "groupsExpanded": {},
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        "compareRunCharts": cards,
        "compareRunSections": sections,
    }


def _id(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _metric(key: str) -> dict[str, str]:
    return {"key": key, "type": "METRIC"}


def _column(kind: str, key: str) -> str:
    return f"{kind}.`{key}`"


def _section(name: str, columns: int, height: int) -> dict[str, Any]:
    return {
        "uuid": _id("section", name),
        "name": name,
        "columns": columns,
        "cardHeight": height,
        "display": True,
        "isReordered": False,
        "deleted": False,
        "isGenerated": False,
    }


def _card(kind: str, section: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "uuid": _id(kind, section, name),
        "type": kind,
        "runsCountToCompare": 100,
        "metricSectionId": section,
        "deleted": False,
        "isGenerated": False,
        "displayName": name,
        **more,
    }


def _curve(section: str, key: str) -> dict[str, Any]:
    return _card(
        "LINE",
        section,
        key,
        metricKey=key,
        selectedMetricKeys=[key],
        lineSmoothness=0,
        xAxisScaleType="linear",
        scaleType="linear",
        range={},
        xAxisKey="step",
        selectedXAxisMetricKey="",
        yAxisKey="metric",
        yAxisExpressions=[],
        ignoreOutliers=False,
        useGlobalXaxisKey=True,
        useGlobalLineSmoothing=True,
    )
