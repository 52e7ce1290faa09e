"""The page people open: a saved view of the experiment, the address that opens it, the lines that lead there.

A saved view is an experiment tag `mlflow.sharedViewState.<key>` holding the state of MLflow's runs page. The format is
MLflow's own and undocumented (read from version 3.17): it is best effort, and a run never fails over it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import shlex
import time
import zlib
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
BARS = (
    SIZE,
    LATENCY,
    "speed/throughput_sps",
    "vs_teacher/quality_kept_pct",
    "vs_teacher/size_ratio",
    "vs_teacher/speedup",
    "vs_teacher/agreement_pct",
)
COLUMNS = (SIZE, "size/params_m", LATENCY, "vs_teacher/quality_kept_pct", "vs_teacher/size_ratio", "vs_teacher/speedup")


def view_key(quality: str = DEFAULT_QUALITY) -> str:
    """Name of the view whose quality axis is this metric: one an experiment for each kind of task in it."""
    return PREFIX + slug(quality.rsplit("/", 1)[-1])


def deep_link(host: str, port: int | None, experiment_id: str, view: str | None = view_key()) -> str:
    """Address of the runs page with our charts; `host` may be a whole address of a server (then `port` is None)."""
    base = host.rstrip("/") if "://" in host else f"http://{f'[{host}]' if ':' in host else host}:{port}"
    share = f"&viewStateShareKey={quote(view)}" if view else ""
    page = f"experiments/{quote(experiment_id)}/runs?workflowType=machine_learning{share}&compareRunsMode=CHART"
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


def ensure_view(client: MlflowClient, experiment_id: str, quality: str) -> None:
    """Writes the saved view unless it is there as we would write it."""
    try:
        tag = TAG + view_key(quality)
        old = client.get_experiment(experiment_id).tags.get(tag)
        state = view_state(quality)
        if old is None or json.loads(old).get("state") != state:
            client.set_experiment_tag(experiment_id, tag, view_tag(state))
    except Exception as error:
        log.info("the saved view was not written: %s", error)


def view_tag(state: str, name: str = NAME) -> str:
    """Value of the experiment tag."""
    now = int(time.time() * 1000)
    return json.dumps({"name": name, "createdAt": now, "updatedAt": now, "state": state})


def view_state(quality: str = DEFAULT_QUALITY) -> str:
    """The packed state of the runs page; the same text for the same quality."""
    packed = zlib.compress(json.dumps(page_state(quality)).encode())
    return "deflate;" + base64.b64encode(packed).decode()


def page_state(quality: str = DEFAULT_QUALITY) -> dict[str, Any]:
    """The runs page: columns, order, and the charts in four sections."""
    sections = [
        _section("Trade-offs", columns=2, height=420),
        _section("All at once", columns=1, height=360),
        _section("Side by side", columns=3, height=300),
        _section("Training curves", columns=2, height=360),
    ]
    trade_offs, all_at_once, side_by_side, curves = (s["uuid"] for s in sections)
    short = quality.rsplit("/", 1)[-1]
    cards = [
        _card("SCATTER", trade_offs, f"{short} vs latency", xaxis=_metric(LATENCY), yaxis=_metric(quality)),
        _card("SCATTER", trade_offs, f"{short} vs megabytes", xaxis=_metric(SIZE), yaxis=_metric(quality)),
        _card(
            "PARALLEL",
            all_at_once,
            f"method, parameters, size, latency, {short}",
            selectedParams=["method"],  # a run without one of these is left out, so only what every run has
            selectedMetrics=["size/params_m", SIZE, LATENCY, quality],
            showAllRuns=True,
        ),
        *(_card("BAR", side_by_side, key, metricKey=key) for key in (quality, *BARS)),
        *(_curve(curves, key) for key in ("train/loss", f"val/{short}")),
    ]
    columns = [_column("params", k) for k in PARAMS] + [_column("metrics", k) for k in (quality, *COLUMNS)]
    return {
        "searchFilter": "",
        "orderByKey": _column("metrics", quality),
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": [*columns, "attributes.`Models`"],
        "columnOrder": [],
        "columnWidths": {},
        "runsHiddenMode": "SHOWALL",
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
