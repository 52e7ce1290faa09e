"""A model with early exits: trained on training rows, chosen on validation rows, written, certified on test rows."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from compress.cascade import certificate
from compress.cascade.candidates import Candidate, fit_temperature, open_model
from compress.cascade.certificate import EXITS_FORMAT, METHODS, MeasuredCascade
from compress.cascade.exits.costs import ExitCosts, measure_costs
from compress.cascade.exits.options import ExitOptions
from compress.cascade.exits.states import ExitStates, compute_states
from compress.cascade.exits.train import answer, scale_logits, train_exit
from compress.cascade.journal import OpenRun, log_certified
from compress.cascade.request import CascadeRequest, remove_chunks
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.text.tokenizer_files import complete
from compress.encoder.config.exits import ExitConfig
from compress.encoder.config.unsupported import refuse_dropped_tokens
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.encoder.reshape.early_exits import add_exits
from compress.measure.models import Subject
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import LoadedModel
from compress.modelfolder.meta import CERTIFICATE, Parent
from compress.modelfolder.sentence_pooling import read_max_length
from compress.onnx.check import ROWS
from compress.predict.predictor import MAX_TOKENS, Predictor
from compress.run.deploy import can_write
from compress.run.publish import slices_note
from compress.stages.shared.proof import SPLIT
from evaluation.cascade import ScoredExits, compute_confidence
from evaluation.thresholds import Selection, choose_cascade


def make_early_model(request: CascadeRequest, options: ExitOptions, output: Path, open_run: OpenRun) -> dict[str, Any]:
    """Write `output`: the model with the exits that make it answer soonest within the bound. Where none makes it
    faster, nothing is written, and `folder` is the model's own. What is done is told; returns the document of --json.

    request: of one model.  open_run: of the tracked run, for exits that were written. Nothing is written before all is
    measured. Raises UserError as `CascadeRequest.check` does, and for layers that the model does not have.
    """
    (name, folder), console = next(iter(request.models.items())), request.console
    loaded = modelfolder.load_model(folder, require={"task"}, device=request.device)
    refuse_dropped_tokens(loaded.config, "exits between them", str(folder))
    layers = options.choose_layers(loaded.config.depth)
    request.check()
    request.note_metric()
    predictor = open_model(request, folder)
    trained = _train(request, options, predictor, layers)
    heads, costs = trained.heads, measure_costs(request, predictor, trained.heads)
    models = _gather(trained, costs)
    selected = choose_cascade(
        models, len(layers), request.max_drop, request.proposing, confidence=request.confidence / 100
    )
    single, choice = selected.single, selected.choice
    _print_exits(request, layers, models)
    if choice is single:
        console.result(request.describe_none("no early exits", "are", name, selected.tested))
        return {"folder": str(folder), "is_cascade": False, "chosen": [name], "certificate": None}
    exits = [
        ExitConfig(layers[place], threshold) for place, threshold in zip(choice.models, choice.thresholds, strict=False)
    ]
    chosen = ", ".join(f"layer {exit.layer} above {exit.threshold:.4f}" for exit in exits)
    console.note(f"chosen: exits after {chosen}; expected mean {choice.ms:.2f} ms, {single.ms:.2f} ms of {name}")
    parent = Candidate(
        name, folder, predictor, trained.temperature, models.confidence[-1], models.right[-1], costs.whole
    )
    made = add_exits(loaded.model, exits, [heads[exit.layer] for exit in exits])
    found, measured = _write(request, loaded, made, selected, parent, output)
    told = log_certified(request, output, found, measured, open_run)
    return {"folder": str(output), "is_cascade": True, "chosen": [name], "certificate": found, **told}


@dataclass(frozen=True)
class _Trained:
    """heads: layer → exit.  confidence, right: (exits and last the model itself, N) on validation rows.  temperature:
    of the model itself."""

    heads: dict[int, nn.Linear]
    confidence: np.ndarray
    right: np.ndarray
    temperature: float


def _train(request: CascadeRequest, options: ExitOptions, predictor: Predictor, layers: Sequence[int]) -> _Trained:
    table, console = request.table, request.console
    train, held = table.split("train"), table.split(SPLIT)
    chosen = np.random.default_rng(options.seed).permutation(len(train))[: options.rows]
    prepared = prepare(predictor.reference, predictor.precision)

    def compute(rows: Any, split: str) -> ExitStates:
        examples = predictor.encode_rows(rows, max_length=request.max_length)
        with request.watch(f"computing states of {split} rows", len(examples), "rows") as progress:
            return compute_states(
                prepared, examples, layers, max_tokens=MAX_TOKENS, device=request.device, told=progress.update
            )

    seen, known = compute(train.take(np.sort(chosen)), "training"), compute(held, SPLIT)
    gold, proposing, heads = np.asarray(held.labels), request.proposing, {}
    with request.watch("training the exits", len(layers), "exits") as progress:
        for done, layer in enumerate(layers, 1):
            heads[layer] = train_exit(seen.states[layer], seen.logits, options.seed)
            progress.update(done)
    console.note(f"trained {len(layers)} exits on the model's answers to {len(chosen):,} training rows")
    own = fit_temperature(known.logits[proposing], gold[proposing])
    for layer, head in heads.items():  # so that one temperature, the model's, fits all answers
        found = answer(head, known.states[layer][proposing])
        scale_logits(head, own / fit_temperature(found, gold[proposing]))
    logits = [*(answer(head, known.states[layer]) for layer, head in heads.items()), known.logits]
    confidence = np.stack([compute_confidence(one) for one in logits])
    return _Trained(heads, confidence, np.stack([one.argmax(-1) == gold for one in logits]), own)


def _gather(trained: _Trained, costs: ExitCosts) -> ScoredExits:
    """What the choice reads."""
    tokenization = costs.whole.tokenization
    times = np.array([*costs.exits.values(), costs.whole.mean - tokenization])
    return ScoredExits(
        trained.confidence, trained.right, times, np.full(len(times), tokenization), [""] * len(times), costs.overhead
    )


def _print_exits(request: CascadeRequest, layers: Sequence[int], models: ScoredExits) -> None:
    names = [*(f"layer {layer}" for layer in layers), "all layers"]
    totals = models.answering + models.tokenizing
    rows = [
        (name, f"{ms:.2f}", f"{100 * right.mean():.2f}")
        for name, ms, right in zip(names, totals, models.right, strict=True)
    ]
    request.console.table(f"if all texts left there, on {SPLIT} rows", ("", "mean ms", "accuracy, %"), rows)


def _write(
    request: CascadeRequest, loaded: LoadedModel, made: Model, selected: Selection, parent: Candidate, output: Path
) -> tuple[dict[str, Any], MeasuredCascade]:
    """(the certificate, which is in the folder too; what was measured)."""
    base = Parent(role="base", name=parent.name, fingerprint=modelfolder.fingerprint(parent.folder))
    meta = loaded.meta.model_copy(
        update={
            "method": METHODS[EXITS_FORMAT], "lineage": (base,), "recipe": None, "notes": (), "measurement": None,
            "baseline": None,
            "max_length": request.max_length, "task_settings": remove_chunks(loaded.meta.task_settings),
        }
    )  # fmt: skip
    files = complete(loaded.tokenizer_files, str(loaded.path))
    with tempfile.TemporaryDirectory(prefix="compress-exits-") as scratch:
        folder = modelfolder.save_model(
            Path(scratch) / output.name, made, tokenizer_files=files, meta=meta, reads=read_max_length(loaded.path)
        )
        if can_write():
            _add_file(request, folder, parent.predictor)
        subject = Subject(output.name, folder, "student", runtime=parent.predictor.runtime)
        theirs, ours = certificate.measure_beside(request, subject, parent)
        measured = MeasuredCascade(theirs, ours, _count_answers(request, made, parent.predictor))
        found = certificate.issue(request, _list_stages(made), selected, parent, measured, EXITS_FORMAT)
        meta = modelfolder.inspect(folder).meta
        meta = meta.with_measurement(ours.measurement, theirs.measurement, slices_note(ours))
        meta = meta.with_certificate(certificate.sentences(found))
        modelfolder.annotate(folder, meta, beside={CERTIFICATE: json.dumps(found, indent=2).encode()})
        modelfolder.duplicate(folder, output)
    return found, measured


def _add_file(request: CascadeRequest, folder: Path, predictor: Predictor) -> None:
    """Add the ONNX file, checked on validation rows."""
    from compress.onnx.writer import write_into

    rows = request.table.split(SPLIT)
    few = predictor.encode_rows(rows.take(np.arange(min(ROWS, len(rows)))), max_length=request.max_length)
    what = f"{request.table.display_name}/{SPLIT}"
    for line in write_into(folder, list(evaluation_batches(few, MAX_TOKENS)), what).findings:
        request.console.note(line)


def _count_answers(request: CascadeRequest, made: Model, predictor: Predictor) -> list[int]:
    """Test rows that each exit answers, and last the model's own head."""
    model = prepare(made, predictor.precision)
    examples = predictor.encode_rows(request.table.split("test"), max_length=request.max_length)
    counts = np.zeros(len(made.exits) + 1, dtype=np.int64)
    with request.watch("counting the rows of each exit", len(examples), "rows") as progress:
        for batch in evaluation_batches(examples, MAX_TOKENS):
            counts += np.bincount(model.find_exits(batch.to(request.device)).cpu().numpy(), minlength=len(counts))
            progress.update(int(counts.sum()))
    return counts.tolist()


def _list_stages(made: Model) -> list[Mapping[str, Any]]:
    exits = made.head_configs["task"].exits
    stages: list[Mapping[str, Any]] = [
        {"name": f"exit after layer {exit.layer}", "layer": exit.layer, "threshold": exit.threshold} for exit in exits
    ]
    return [*stages, {"name": "all layers", "layer": made.config.depth, "threshold": None}]
