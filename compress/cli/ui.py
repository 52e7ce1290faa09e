"""Serve the MLflow page of the runs, and print the link that opens it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import click

from compress.cli._help import Command
from compress.cli._renamed import RenamedChoice
from compress.cli._types import IntRange
from compress.cli.main import debug_option

if TYPE_CHECKING:
    from compress.tracking.listing import Page
    from compress.tracking.store import Store


@click.command(cls=Command)
@click.option("--experiment", metavar="NAME", help="Experiment to open (default: that of the newest run).")
@click.option(
    "--view",
    type=RenamedChoice(["tradeoffs", "lineage", "criteria"], {"contest": "criteria"}),
    default="tradeoffs",
    show_default=True,
    help="tradeoffs: quality versus latency and size, of all runs. lineage: one model's run and its stages. "
    "criteria: the models of `compress prune-layers --criterion all` by criterion, depth and seed.",
)
@click.option(
    "--run",
    metavar="NAME",
    help="Run whose view to open: its name, or the first characters of its id (default: the newest).",
)
@click.option("--port", type=IntRange(1, 65535), help="Port to serve on (default: 5000 or the next free one).")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve on.")
@click.option("--expose", is_flag=True, help="Allow a --host that other machines can reach. The page has no login.")
@click.option(
    "--tracking-uri", metavar="URI", help="MLflow store (default: MLFLOW_TRACKING_URI, else mlruns/mlflow.db)."
)
@debug_option
def command(
    experiment: str | None,
    view: str,
    run: str | None,
    port: int | None,
    host: str,
    expose: bool,
    tracking_uri: str | None,
) -> None:
    """Serve the MLflow page of the runs until Ctrl-C, and print the link that opens it.

    \b
      compress ui --view lineage --run NAME

    The link opens the trade-off view (quality versus latency and size); with --view, the lineage of one model or a
    comparison of pruning criteria.
    """
    from compress.console import Console
    from compress.tracking.families import find_view
    from compress.tracking.server import check_host
    from compress.tracking.store import resolve_store

    check_host(host, expose)
    store = resolve_store(tracking_uri)
    console = Console()
    page = find_view(store, view, run, experiment)
    if page is not None and view == "tradeoffs":
        from compress.compare.firstpage import renew

        renew(store, page.experiment)  # runs of earlier versions, and of processes that were killed
        page = find_view(store, view, run, page.experiment)
    if page is None:
        console.note(f"no run in {store.shown} yet; start one with: compress distill --recipe distilbert")
    if store.is_server:
        console.result(_link(store.shown, None, page))
        return
    _serve(store, host, port, page, console)


def _serve(store: Store, host: str, port: int | None, page: Page | None, console) -> None:
    from compress.errors import ExitCode, UserError, printable
    from compress.tracking.server import run_server

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)  # the server must not outlive us
    try:
        with run_server(store, host, port) as server:
            console.result(_link(server.address, None, page))
            console.note(f"serving {store.shown}; press Ctrl-C to stop")
            if page is not None:
                server.warm(page.experiment_id)
            code = server.wait()
            last = printable(server.said[-1], 300) if server.said else "it printed nothing"
            raise UserError(
                f"the MLflow server exited with code {code}",
                why=f"its last line: {last}",
                code=ExitCode.ENVIRONMENT,
            )
    except KeyboardInterrupt:
        console.note("stopped")


def _link(host: str, port: int | None, page: Page | None) -> str:
    from compress.tracking.view import deep_link

    if page is None:
        return f"{host}/#/experiments?workflowType=machine_learning"
    return deep_link(host, port, page.experiment_id, page.view, charts=page.charts)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
