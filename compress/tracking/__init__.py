"""Runs, their figures and their models in MLflow. The only code that imports mlflow, and only when it is used.

Training writes to a journal in the run's own folder; a thread carries the journal to the store. So a dead server, a
locked or broken database, a full disk of another machine never stop or slow a training, and `compress sync` sends later
what was missed.
"""

from compress.tracking.relocating import require_in_place
from compress.tracking.run import Parent, TrackedRun, experiment, open_child, open_requested_run, open_run
from compress.tracking.state import read_stored_run_id
from compress.tracking.store import Store, resolve_store
from compress.tracking.sync import SyncedRun, sync
from compress.tracking.view import deep_link, ui_lines

__all__ = [
    "Parent",
    "Store",
    "SyncedRun",
    "TrackedRun",
    "deep_link",
    "experiment",
    "open_child",
    "open_requested_run",
    "open_run",
    "resolve_store",
    "read_stored_run_id",
    "require_in_place",
    "sync",
    "ui_lines",
]
