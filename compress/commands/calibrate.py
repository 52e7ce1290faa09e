"""`compress calibrate`: the temperature with which probabilities fit labelled data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compress.console import Console
from compress.contracts import RunOptions
from compress.data.tasks import classification
from compress.errors import ExitCode, UserError
from compress.measure.calibration import FEWEST_ROWS, FILE, calibration, chart
from compress.measure.labelled import open_labelled
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.names import model_label
from compress.modelfolder.private import has_exits
from compress.modelfolder.push import HubRepository, push_and_print
from compress.modelfolder.resolve import resolve
from compress.modelfolder.sentence_files import sentence_files
from compress.onnx import model_file
from compress.predict.predictor import Predictor
from compress.run.folder import new_output
from compress.stages.shared.task_head import check_same_task
from compress.storage import atomic
from evaluation.quality.calibration import (
    NoTemperatureError,
    calibration_error,
    fit_validated_temperature,
    negative_log_likelihood,
)

BOOTSTRAP = 200
INSTEAD = "fit it on more rows, on rows that the model was not trained on, or keep the model as it is"


def calibrate(model: str, split: str, options: RunOptions) -> float:
    """Write `options.output`: the model with the temperature that makes its probabilities fit one split.

    Told with the calibration error on the test rows before and after; no answer changes. Raises UserError for kinds of
    task whose answers have no such probabilities, for too few rows, when there is no output, when it or its plot exists
    already, and (refused) where no temperature improves the probabilities of rows that it was not fitted on: nothing is
    written.
    """
    output = new_output(options)
    plot = output.with_name(f"{output.name}-{FILE}")
    if plot.exists():  # of a run whose folder is gone
        raise UserError("exists already", where=str(plot), do="name another --output", code=ExitCode.REFUSED)
    console = Console(quiet=options.quiet, json=options.json)
    repository = HubRepository.requested(options)
    folder = resolve(model)
    info = modelfolder.inspect(folder)
    if has_exits(folder):
        raise modelfolder.refuse_exits(folder)
    carried = sentence_files(folder, info.config)
    recipe, table = open_labelled(info, options, console)
    predictor = Predictor(folder, device=options.device, task=table.task)
    check_same_task(predictor.head, predictor.label_names, table.task, str(folder))
    if "temperature" not in predictor.task.settings:
        raise UserError(
            f"temperature scaling does not support {table.task}", where=str(folder), do="use a single-label classifier"
        )
    assert recipe.data is not None
    logits, gold = [], []
    for name in (split, "test"):
        rows = table.split(name)
        if len(rows) < FEWEST_ROWS:
            raise UserError(f"too few {name} rows", where="--data", why=f"found {len(rows)}, required: {FEWEST_ROWS}")
        examples = predictor.encode_rows(rows, max_length=recipe.data.max_length)
        assert isinstance(predictor.task, classification.Task)
        with console.slow_progress(f"scoring {name}", len(examples), "rows") as progress:
            answers = predictor.logits(examples, told=progress.update)
        logits.append(predictor.task.pool_chunks(answers, examples))
        gold.append(np.asarray(rows.labels))
    current = _temperature(info)
    temperature = _fit(logits[0], gold[0], current, f"{table.display_name}/{split}")
    told = {}
    for name, t in (("before", current), ("after", temperature)):
        error = calibration_error(logits[1] / t, gold[1])(np.ones((1, len(gold[1]))))[0]
        told[name] = {
            "temperature": t,
            "calibration_error": float(error),
            "negative_log_likelihood": negative_log_likelihood(logits[1], gold[1], t),
        }
    _require_no_loss(told, f"{table.display_name}/test", temperature)
    loaded = modelfolder.load_model(folder)
    parent = modelfolder.Parent(role="base", name=model_label(folder), fingerprint=modelfolder.fingerprint(folder))
    settings = {**loaded.meta.task_settings, "temperature": temperature}
    where = f"{table.display_name}/{split}"
    note = f"probabilities calibrated on {len(gold[0]):,} rows of {where}: temperature {temperature:.3f}"
    meta = modelfolder.FolderMeta(
        family=loaded.family, task=table.task, label_names=loaded.meta.label_names, task_settings=settings,
        method=loaded.meta.method, max_length=loaded.meta.max_length, lineage=(parent,), data=loaded.meta.data,
        language=loaded.meta.language, license=loaded.meta.license, notes=(*loaded.meta.notes, note),
    )  # fmt: skip
    modelfolder.save_model(output, loaded.model, tokenizer_files=loaded.tokenizer_files, meta=meta, beside=carried)
    if files := model_file.find_files(folder, output):  # the weights are the same, and the file gives logits
        modelfolder.annotate(output, meta, beside=files)
    columns = (f"on {len(gold[1]):,} rows of {table.display_name}/test", *told)
    shown = [[f"{row[key]:.4f}" for row in told.values()] for key in next(iter(told.values()))]
    names = ("temperature", "calibration error", "negative log-likelihood")
    console.table("", columns, [(name, *cells) for name, cells in zip(names, shown, strict=True)])
    found = calibration(logits[1], gold[1], current, (logits[0], gold[0]), bootstrap=BOOTSTRAP)
    title = f"reliability diagram, {table.display_name}/test"
    atomic.write_text(plot, chart(title, {folder.name: found}, scaled=folder.name))
    console.result(f"wrote {output}; predictions are unchanged; only the probabilities change")
    console.result(f"plot     {plot}")
    document = {"folder": str(output), "plot": str(plot), "fitted_on": split, **told}
    push_and_print(console, document, output, repository)
    return temperature


def _fit(logits: np.ndarray, gold: np.ndarray, current: float, where: str) -> float:
    try:
        return fit_validated_temperature(logits, gold, current).temperature
    except NoTemperatureError as error:
        raise UserError(
            "no temperature improves the probabilities", where=where, why=str(error), do=INSTEAD, code=ExitCode.REFUSED
        ) from None


def _require_no_loss(told: Mapping[str, Mapping[str, float]], where: str, temperature: float) -> None:
    before, after = (told[name]["negative_log_likelihood"] for name in ("before", "after"))
    if after > before:
        raise UserError(
            "the temperature worsens the probabilities of the test rows", where=where,
            why=f"negative log-likelihood {before:.4f} before, {after:.4f} at temperature {temperature:.3f}",
            do=INSTEAD, code=ExitCode.REFUSED,
        )  # fmt: skip


def _temperature(info: modelfolder.FolderInfo) -> float:
    """What the folder divides its logits by."""
    return float(info.meta.task_settings.get("temperature") or 1.0)
