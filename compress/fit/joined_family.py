"""`fit --cascade`: the models of a fit, from the fastest to the parent, joined into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compress.cascade.certificate import CERTIFIED
from compress.cascade.join import join_models
from compress.cascade.journal import name_run_folder
from compress.cascade.request import CascadeRequest
from compress.fit.cost.serving import FLOAT
from compress.fit.journal import Journal
from compress.fit.make.bench import Bench
from compress.fit.make.evaluator import Evaluation
from compress.fit.plan.search import find_front
from compress.fit.request.case import Case
from compress.modelfolder import folder as modelfolder
from compress.stages.shared.folder_meta import data_note
from compress.stages.shared.labelled_data import settings_for
from compress.storage import atomic

OUTPUT, PARENT = "cascade", "parent-model"


def join_family(
    case: Case, bench: Bench, journal: Journal, tried: Sequence[Evaluation], best: Evaluation, met: bool
) -> dict[str, Any]:
    """Write the cascade into the run's folder; the document of `join_models`, with `accepted`: whether the cascade is
    within the bound on the test rows.

    best: the single model of the fit; met: whether it is within the bound, so that a cascade has to be faster.
    """
    parent, output = journal.path / PARENT, journal.path / OUTPUT
    if atomic.verify_folder(parent):
        bench.maker.write(bench.space.plan_whole_model(FLOAT), bench.serving, parent, data_note(case.table))
    if output.exists():  # of a run that is resumed
        atomic.remove_folder(output)
    assert case.bounds.max_drop is not None
    whole = modelfolder.fingerprint(parent)  # where nothing is quantized, a plan may be the parent itself
    models = {
        one.name: one.folder for one in (*find_front(tried), best) if modelfolder.fingerprint(one.folder) != whole
    }
    if not models:
        case.console.result("no cascade: no model of this fit is better than the parent in size or latency")
        return {
            "folder": str(best.folder), "is_cascade": False, "chosen": [best.name], "certificate": None,
            "accepted": False,
        }  # fmt: skip
    request = CascadeRequest(
        {**models, "parent": parent}, case.table, case.max_length, settings_for(case.recipe, case.table),
        case.bounds.max_drop, case.console, case.options.device, bench.serving.runtime,
        accepted=[best.name] if met else [],
        rows_chose_models=True,  # the search compared them by their scores on all validation rows
        check_stop=case.clock.check,
    )  # fmt: skip
    case.console.note(f"joining {len(request.models)} models into a cascade")
    found = join_models(
        request, output, lambda method: journal.child(name_run_folder(output), OUTPUT, "student", method)
    )
    certificate = found["certificate"]
    return {**found, "accepted": certificate is not None and certificate["status"] == CERTIFIED}
