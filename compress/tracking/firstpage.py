"""Writes the first page of an experiment: tags of its runs, saved views, and the verdict in its description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from compress.tracking.files import AT_ONCE, run_at_once
from compress.tracking.models import NOTE
from compress.tracking.reading import StoredRun
from compress.tracking.view import SavedView, newest_view, write_view

if TYPE_CHECKING:
    from mlflow import MlflowClient

HEADING = "### Verdict"
"""Begin of the first line, which goes on with the sentence: the page shows that line alone until it is opened."""
END = "*Written by compress after each run. Text above the heading and below this line is kept.*"
DESCRIPTION_LIMIT = 20_000  # characters of an experiment's tag


def write_page(
    client: MlflowClient,
    experiment: str,
    runs: Sequence[StoredRun],
    tags: Mapping[str, Mapping[str, str]],
    views: Sequence[SavedView],
    verdict: str,
) -> None:
    """Write what differs from what the store has. tags: run id → tags.  views: the last one opens.  verdict: Markdown
    from HEADING to END. Raises what the client raises."""
    from mlflow.entities import RunTag

    calls = []
    for run in runs:
        changed = [RunTag(key, value) for key, value in tags[run.run_id].items() if run.tags.get(key) != value]
        if changed:
            calls.append(partial(client.log_batch, run.run_id, tags=changed, synchronous=True))
    for error in run_at_once(calls, 1 if client.tracking_uri.startswith("sqlite:") else AT_ONCE):
        if error is not None:
            raise error
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    written = False
    for view in views:
        opens = view is views[-1] and (written or newest_view(found.tags) != view.key)
        written |= write_view(client, found.experiment_id, view.key, view.state, view.name, found.tags, again=opens)
    before = found.tags.get(NOTE, "")
    after = replace_verdict(before, verdict)
    if after != before and len(after) <= DESCRIPTION_LIMIT:  # never cut: what a person wrote may be at the end
        client.set_experiment_tag(found.experiment_id, NOTE, after)


def replace_verdict(text: str, verdict: str) -> str:
    """A description with this verdict in the place of the one in it; what a person wrote around it stays."""
    before, heading, rest = text.partition(HEADING)
    if not heading:
        return "\n\n".join(filter(None, [text.strip(), verdict]))
    _, end, after = rest.partition(END)
    return "\n\n".join(filter(None, [before.strip(), verdict, after.strip() if end else ""]))
