"""`compress cascade`: existing model folders joined into one, or early exits added to one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from compress.cascade.certificate import EXCEEDED
from compress.cascade.exits.add import make_early_model
from compress.cascade.exits.options import ExitOptions
from compress.cascade.join import join_models
from compress.cascade.journal import name_run_folder
from compress.cascade.request import CascadeRequest, require_one, require_several
from compress.console import Console
from compress.contracts import RunOptions
from compress.contracts.confidence import CONFIDENCE
from compress.data.tasks import task_of
from compress.errors import ExitCode, UserError
from compress.measure.labelled import open_labelled
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.cascade import copy_model
from compress.modelfolder.names import label_models
from compress.modelfolder.push import HubRepository, push_and_print
from compress.modelfolder.resolve import resolve
from compress.predict.fastest import get_requested_runtime
from compress.report.rows import title
from compress.run.folder import new_output
from compress.stages.shared.labelled_data import settings_for
from compress.stages.shared.validation import task_choice
from compress.storage import atomic, manifest
from compress.storage.disk import take_free_folder
from compress.storage.signals import StopFlag
from compress.tracking import TrackedRun, experiment, open_requested_run, resolve_store, ui_lines


def cascade(
    models: Sequence[str], max_drop: float, options: RunOptions, exits: ExitOptions | None = None,
    confidence: float = CONFIDENCE,
) -> None:  # fmt: skip
    """Write `options.output`: the fastest cascade of these models that loses at most `max_drop` points of accuracy
    against the largest of them, with `confidence` percent if the validation rows did not choose the models. exits: of
    one model, in place of a cascade.

    Raises UserError for models that do not make one, and (refused) where the loss on the test rows came out above the
    bound; the folder is there then.
    """
    require_several(models) if exits is None else require_one(models)
    output = new_output(options)
    console = Console(quiet=options.quiet, json=options.json)
    repository, store = HubRepository.requested(options), resolve_store(options.tracking_uri)
    folders = [resolve(name, options.tracking_uri) for name in models]
    places = [folder.resolve() for folder in folders]
    if repeated := next((name for name, place in zip(models, places, strict=True) if places.count(place) > 1), None):
        raise UserError("the same model is given twice", where=repeated, do="remove one of them")
    largest = max((modelfolder.inspect(folder) for folder in folders), key=lambda info: info.config.count_parameters())
    recipe, table = open_labelled(largest, options, console)
    assert recipe.data is not None

    def open_run(method: str) -> TrackedRun:
        return open_requested_run(
            take_free_folder(name_run_folder(output)), options, name=output.name, method=method,
            quality=f"quality/{task_choice(table)[0]}", warn=console.warn,
        )  # fmt: skip

    with StopFlag() as stop:  # what is being written is removed then
        request = CascadeRequest(
            dict(zip(label_models(folders), folders, strict=True)), table, recipe.data.max_length,
            settings_for(recipe, table), max_drop, console, options.device, get_requested_runtime(options),
            confidence=confidence, check_stop=stop.check,
        )  # fmt: skip
        document = (
            join_models(request, output, open_run)
            if exits is None
            else make_early_model(request, exits, output, open_run)
        )
    if not document["is_cascade"]:
        with atomic.new_folder(output) as temp:
            copy_model(Path(document["folder"]), temp, left=[manifest.NAME])
        document["folder"] = str(output)
        console.result(f"wrote {output}, a copy of {document['chosen'][0]}")
    found = document["certificate"]
    example = task_of(table.task).example_for(table.columns)
    console.result(f"use it   compress predict {shlex.quote(str(output))} {example}")
    if found is not None:
        for line in ui_lines(store, experiment(options)):
            console.result(f"see it   {line}")
    exceeded = found is not None and found["status"] == EXCEEDED
    push_and_print(console, document, output, None if exceeded else repository)
    if found is not None and exceeded:
        metric, difference = title(found["quality"]["metric"]), found["difference"]["value"]
        lost = f"{metric} is undefined there" if difference is None else f"{-100 * difference:.2f} points of {metric}"
        raise UserError(
            f"{'the cascade loses' if exits is None else 'the early exits lose'} more than allowed on the test rows",
            where=str(output),
            why=f"{lost}, bound {max_drop:g}",
            do="give more validation rows, or a larger bound", code=ExitCode.REFUSED,
        )  # fmt: skip
