"""Models joined into a cascade: thresholds chosen on validation rows, the folder written, certified on test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compress.cascade import certificate
from compress.cascade.candidates import Candidate, find_parent, gather_scores, measure_candidates
from compress.cascade.certificate import MeasuredCascade
from compress.cascade.journal import OpenRun, log_certified
from compress.cascade.request import CascadeRequest, remove_chunks, require_several
from compress.modelfolder import cascade as cascades
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.cascade import Stage
from compress.modelfolder.meta import CERTIFICATE, FolderMeta, Parent
from compress.run.publish import slices_note
from compress.storage import atomic
from evaluation.thresholds import Selection, choose_cascade


def join_models(request: CascadeRequest, output: Path, open_run: OpenRun) -> dict[str, Any]:
    """Write `output`: the cascade with the least expected latency within the bound. Where none is faster than the
    fastest single model within it, nothing is written, and `folder` is that model's. What is done is told; returns the
    document of --json.

    open_run: of the tracked run, for a cascade that was written. Nothing is written before all is measured. Raises
    UserError as `CascadeRequest.check` does.
    """
    require_several(list(request.models))
    request.check()
    request.note_metric()
    console = request.console
    candidates = measure_candidates(request)
    parent = find_parent(candidates)
    _print_candidates(request, candidates, parent)
    accepted = [i for i, c in enumerate(candidates) if c.name in request.accepted]
    found = choose_cascade(
        gather_scores(candidates), parent, request.max_drop, request.proposing,
        confidence=request.confidence / 100, accepted=accepted,
    )  # fmt: skip
    single, choice = found.single, found.choice
    names = [candidates[i].name for i in choice.models]
    if choice is single:
        console.result(request.describe_none("no cascade of these models", "is", names[0], found.tested))
        folder = candidates[single.models[0]].folder
        return {"folder": str(folder), "is_cascade": False, "chosen": names, "certificate": None}
    left = [c.name for i, c in enumerate(candidates) if i not in choice.models]
    console.note(
        f"chosen: {', then '.join(names)}; expected mean {choice.ms:.2f} ms, {single.ms:.2f} ms of "
        f"{candidates[single.models[0]].name} alone" + (f"; not needed: {', '.join(left)}" if left else "")
    )
    issued, measured = _write(request, candidates, parent, found, output)
    told = log_certified(request, output, issued, measured, open_run)
    return {"folder": str(output), "is_cascade": True, "chosen": names, "certificate": issued, **told}


def _write(
    request: CascadeRequest, candidates: Sequence[Candidate], parent: int, selected: Selection, output: Path
) -> tuple[dict[str, Any], MeasuredCascade]:
    """(the certificate, which is in the folder too; what was measured)."""
    choice = selected.choice
    chosen = [candidates[i] for i in choice.models]
    stages = [
        Stage(name=c.name, folder=f"stage-{place}", temperature=c.temperature, threshold=threshold)
        for place, (c, threshold) in enumerate(zip(chosen, [*choice.thresholds, None], strict=True), 1)
    ]
    meta = _describe(request, chosen, candidates[parent])
    with atomic.new_folder(output) as temp:
        cascades.fill(temp, stages, [c.folder for c in chosen], meta)
        measured = certificate.measure_cascade(request, temp, output.name, candidates[parent])
        found = certificate.issue(
            request, [s.model_dump(mode="json") for s in stages], selected, candidates[parent], measured
        )
        atomic.write_json(temp / CERTIFICATE, found)
        lines = [certificate.describe_stage(stage) for stage in found["stages"]]
        cascades.describe(temp, _with_figures(meta, measured, found), output.name, lines)
    return found, measured


def _describe(request: CascadeRequest, chosen: Sequence[Candidate], parent: Candidate) -> FolderMeta:
    """What the cascade's compress.json says before it is measured: what the largest model's says, where one holds for
    all of them."""
    info = modelfolder.inspect(parent.folder)
    settings = {k: v for k, v in remove_chunks(info.meta.task_settings).items() if k != "temperature"}
    lineage = tuple(
        Parent(role=f"model {place} of {len(chosen)}", name=c.name, fingerprint=modelfolder.fingerprint(c.folder))
        for place, c in enumerate(chosen, 1)
    )
    return FolderMeta(
        family=info.family, task=request.table.task, label_names=tuple(request.table.label_names),
        task_settings=settings, method=cascades.METHOD, max_length=request.max_length, language=info.meta.language,
        license=info.meta.license, lineage=lineage, data=info.meta.data, software=info.meta.software,
    )  # fmt: skip


def _with_figures(meta: FolderMeta, measured: MeasuredCascade, found: Mapping[str, Any]) -> FolderMeta:
    ours, theirs = measured.cascade, measured.parent
    whole = meta.with_measurement(ours.measurement, theirs.measurement, slices_note(ours))
    return whole.with_certificate(certificate.sentences(found))


def _print_candidates(request: CascadeRequest, candidates: Sequence[Candidate], parent: int) -> None:
    names = [c.name for c in candidates]
    if names[parent] != "parent":  # as the models of a fit call theirs
        names[parent] += " (parent)"
    rows = [
        (name, f"{c.latency.mean:.2f}", f"{100 * c.right.mean():.2f}", f"{c.temperature:.3f}")
        for name, c in zip(names, candidates, strict=True)
    ]
    request.console.table("models by latency, on validation rows", ("", "mean ms", "accuracy, %", "temperature"), rows)
    given = list(request.models)
    if not request.rows_chose_models and given != [c.name for c in candidates]:  # a fit has no order that was given
        request.console.note("the models answer in order of their latency, not in the order given")
