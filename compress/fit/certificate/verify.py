"""`compress verify`: a certificate held against the folder that it lies in, on this device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from compress.console import Console
from compress.contracts import RunOptions
from compress.data.tables.table import Table
from compress.errors import ExitCode, UserError
from compress.fit.certificate import document as certificate
from compress.fit.certificate import elsewhere
from compress.fit.certificate.checks import (
    NEW_KIT,
    CheckedStatement,
    check_files,
    check_kit_latency,
    check_latency,
    check_quality,
    check_size,
)
from compress.measure.labelled import open_labelled
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.resolve import resolve
from compress.onnx.runtimes import Runtime, versions
from compress.predict.predictor import Predictor, build_fixed_batch
from compress.predict.real_texts import TextCalls, TextSample, mean_of_calls, sample_texts
from compress.stages.shared.labelled_data import settings_for
from evaluation.cost.device import describe
from evaluation.cost.latency import Latency, measure_interleaved

_SHOWN = {"open": "not checked"}


def verify(
    model: str,
    options: RunOptions,
    console: Console,
    timer: Callable[..., list[Latency]] = measure_interleaved,
    measured: Path | None = None,
) -> list[CheckedStatement]:
    """Check, tell, and leave with an honest exit code. options: with data, quality is measured too.  measured: what a
    kit wrote where the model is served; it becomes the latency of the certificate.

    Raises UserError: DATA where a file is not the one that was certified; REFUSED where a statement does not hold or
    could not be judged here.
    """
    folder = resolve(model)
    found = certificate.read(folder)
    checks = [check_files(folder, found)]
    if checks[0].verdict == "holds":
        if measured is not None:
            found = elsewhere.complete(found, elsewhere.read_measurement(measured, found))
            certificate.write(folder, found)
            console.note(f"the measured latency is now part of the certificate; its status is {found['status']}")
        checks.append(check_size(folder, found))
        runtime: Runtime = found["runtime"]
        if measured is not None:
            checks.append(check_kit_latency(found))
        elif versions().get(runtime) is None:
            checks.append(CheckedStatement("latency", "open", f"{runtime} is not installed"))
        else:
            checks += _measured(folder, found, runtime, options, console, timer)
    if found["status"] != certificate.CERTIFIED:
        checks.append(
            CheckedStatement(
                "status", "open", f"the certificate's status is {found['status']}: {'; '.join(found['why'])}"
            )
        )
    console.table("", ("", "", ""), [(c.what, _SHOWN.get(c.verdict, c.verdict), c.why) for c in checks])
    console.document({"folder": str(folder), "checks": [vars(c) for c in checks]})
    bad = [c for c in checks if c.verdict != "holds"]
    if bad:
        fails = [c for c in bad if c.verdict == "fails"]
        worst = (fails or bad)[0]
        raise UserError(
            "the certificate does not hold" if fails else "the certificate could not be checked completely",
            where=str(folder),
            why=f"{worst.what}: {worst.why}",
            code=ExitCode.DATA if worst.what == "files" else ExitCode.REFUSED,
        )
    console.result("the certificate holds")
    return checks


def _measured(
    folder: Path,
    found: Mapping[str, Any],
    runtime: Runtime,
    options: RunOptions,
    console: Console,
    timer: Callable[..., list[Latency]],
) -> list[CheckedStatement]:
    """Latency, and quality where data is named."""
    if options.threads is None:  # as it was certified, unless a person says otherwise
        torch.set_num_threads(int(found["device"]["threads"]))
    info = modelfolder.inspect(folder)
    data = any(o.path == "data.source" for o in options.overrides)
    if data and found["quality"]["labels"] != "given":
        console.note("quality is not checked: it was certified by the parent's predictions, which are not stored")
        data = False
    recipe, table = open_labelled(info, options, console) if data else (None, None)
    how: dict[str, Any] = (
        {} if recipe is None or table is None else {"task": table.task, "settings": settings_for(recipe, table)}
    )
    if runtime == "torch-int8" and info.config.quantization is None:
        runtime = "torch"
    predictor = Predictor(folder, device=options.device, runtime=runtime, **how)
    sample = None
    if recipe is not None and table is not None and recipe.data is not None and "data" in found["latency"]:
        sample = _certified_texts(found["latency"], table, recipe.data.max_length)
    about = found["latency"].get("predicted")
    if about is not None:
        why = f"{certificate.NOT_MEASURED.format(about['target'])}; {NEW_KIT}"
        checks = [CheckedStatement("latency", "open", why)]
    else:
        ours = _time(predictor, found["latency"], sample, timer, console)
        checks = [check_latency(found, ours, describe(options.device))]
    if recipe is None or table is None:
        if found["quality"]["labels"] == "given":
            console.note("quality is not checked; add --data to check it")
        return checks
    assert recipe.data is not None
    split = str(found["dataset"]).rpartition("/")[2]
    rows = table.split(split)
    examples = predictor.encode_rows(rows, max_length=recipe.data.max_length)
    scored = predictor.task.score(predictor.logits(examples), predictor.label_names, examples, rows)
    checks.append(check_quality(found, table.measured_fingerprint, scored.value(found["quality"]["metric"])))
    return checks


def _certified_texts(latency: Mapping[str, Any], table: Table, max_length: int) -> TextSample | None:
    """The texts of the certificate; None where the data is other than it was."""
    split = str(latency["data"]).rpartition("/")[2]
    if latency["digest"] != table.measured_fingerprint or split not in table.splits:
        return None
    return sample_texts(
        table.split(split), data=latency["data"], digest=latency["digest"], max_length=max_length,
        batch=int(latency["batch"]),
    )  # fmt: skip


def _time(
    predictor: Predictor,
    latency: Mapping[str, Any],
    sample: TextSample | None,
    timer: Callable[..., list[Latency]],
    console: Console,
) -> Latency:
    """Of a batch as it was certified. sample: the texts that were; None: random tokens of as many as they had, with the
    tokenization of the certificate."""
    how: dict[str, Any] = {"device": predictor.device, "repeats": 60, "seconds": 10.0}
    if sample is not None:
        calls = TextCalls.of(sample, predictor)
        return mean_of_calls(timer([calls.parts(predictor)], **how)[0], len(calls.tokens))
    if "length" not in latency:
        console.note(
            "latency is checked on random tokens, as many as the certified texts have, plus the certified time of "
            "tokenization; add --data with the certificate's data to time the texts"
        )
    shapes = elsewhere.list_shapes(latency)
    batches = [build_fixed_batch(predictor.config, *shape).to(predictor.device) for shape in shapes]
    found = mean_of_calls(timer([[lambda b=b: predictor(b) for b in batches]], **how)[0], len(batches))
    return found if "length" in latency else replace(found, p50=found.p50 + elsewhere.tokenization_of(latency))
