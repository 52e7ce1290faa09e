"""What a model needs, studied once and kept: a fit of the same model and data to other bounds begins with its plans.

The study takes a third of a fit without training. What is kept stands for the model, the data, how they were read, and
this program; anything else is studied anew. A file that cannot be read is as none.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from compress.contracts import Watch, WidthScores, unwatched
from compress.errors import UserError
from compress.fit.cost.blocks import Blocks
from compress.fit.loss.study import Student, Study, Vocabulary
from compress.fit.make.build import Maker
from compress.fit.make.joined_layers import Join
from compress.fit.plan.planner import Shape
from compress.fit.plan.plans import Scales, Space
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import LoadedModel
from compress.run.cache import code
from compress.storage import atomic, safe
from compress.storage.cache import cache_folder

FORMAT = 3
ARRAYS, SAID, FILES = "study.safetensors", "study.json", "vocabularies"
UNREADABLE = (OSError, ValueError, LookupError, TypeError, UserError)  # of another version


def load_or_make_study(
    student: Student,
    blocks: Blocks,
    stop: Callable[[], None],
    say: Callable[[str], None],
    *,
    joins: bool = False,
    watch: Watch = unwatched,
) -> tuple[Study, Scales]:
    """What the student's model needs, and how planned losses become measured ones: read, or found now and kept. joins:
    as `Student.study` takes it."""
    folder = place(student, blocks, joins=joins)
    if (found := _read(folder, student.loaded)) is not None:
        say(f"loss measurements: reused from an earlier fit, {folder}")
        return found
    if os.path.lexists(folder):
        say(f"the loss measurements in the cache are damaged and are made again: {folder}")
    say("measuring how much each part of the model matters")
    with watch("measuring the model's parts", None, "measurements") as student.progress:
        study = student.study(joins=joins)
        scales = Maker(student, Space(study, blocks), stop).scales()
    student.progress = None
    if os.path.lexists(folder) and not atomic.is_ours(folder):
        atomic.set_aside(folder)
    with atomic.new_folder(folder, replace=True) as temp:
        _write(temp, study, scales)
    return study, scales


def place(student: Student, blocks: Blocks, *, joins: bool = False) -> Path:
    """Where it is kept: a name for all that a study depends on. Its probes are made by what blocks cost."""
    serving = student.serving
    made_for = [
        FORMAT, joins, code(), torch.__version__, torch.get_num_threads(), modelfolder.fingerprint(student.loaded.path),
        student.table.fingerprint, student.task.kind, dict(student.table.settings), student.max_length, student.seed,
        serving.runtime, serving.device, blocks.as_json(),
    ]  # fmt: skip
    digest = hashlib.sha256(json.dumps(made_for, sort_keys=True).encode()).hexdigest()
    return cache_folder() / "studies" / digest[:32]


def _write(folder: Path, study: Study, scales: Scales) -> None:
    scores, cuts = study.scores, [v for v in study.vocabularies if v.kept is not None]
    lists = {
        "scores-heads": scores.heads, "scores-neurons": scores.neurons, "scores-lost": scores.lost,
        "heads": [torch.tensor(curve) for curve in study.heads],
        "neurons": [torch.tensor(curve) for curve in study.neurons],
        "kept": [torch.tensor(v.kept) for v in cuts],
    }  # fmt: skip
    said = {
        "drops": list(study.drops),
        "matrices": [
            [bits, [[*unit, lost] for unit, lost in losses.items()]] for bits, losses in study.matrices.items()
        ],
        "tables": list(study.tables.items()),
        "ranks": list(study.ranks.items()),
        "vocabularies": [[v.name, v.rows, v.loss, v.kept is not None, list(v.files)] for v in study.vocabularies],
        "joins": [[join.first, join.loss] for join in study.joins],
        "scales": [scales.shape.sums, scales.shape.losses, scales.drops],
        "counts": {name: len(found) for name, found in lists.items()},
    }
    tensors = {f"{name}/{i}": tensor for name, found in lists.items() for i, tensor in enumerate(found)}
    atomic.write_safetensors(folder / ARRAYS, tensors)
    # A layer that cannot go loses infinitely much, which `write_json` refuses.
    atomic.write_text(folder / SAID, json.dumps(said))
    for i, vocabulary in enumerate(cuts):
        for name, data in vocabulary.files.items():
            atomic.write_bytes(folder / FILES / str(i) / name, data)


def _read(folder: Path, loaded: LoadedModel) -> tuple[Study, Scales] | None:
    if atomic.verify_folder(folder):
        return None
    try:
        return _of(folder, json.loads((folder / SAID).read_text(encoding="utf-8")), loaded)
    except UNREADABLE:
        return None


def _of(folder: Path, said: Mapping[str, Any], loaded: LoadedModel) -> tuple[Study, Scales]:
    tensors = safe.load_safetensors(folder / ARRAYS)

    def numbered(name: str) -> list[torch.Tensor]:
        return [tensors[f"{name}/{i}"] for i in range(said["counts"][name])]

    vocabularies, cuts = [], iter(enumerate(numbered("kept")))
    for name, rows, loss, cut, files in said["vocabularies"]:
        if cut:
            i, kept = next(cuts)
            made = {file: (folder / FILES / str(i) / file).read_bytes() for file in files}
            vocabularies.append(Vocabulary(name, rows, loss, kept.numpy(), made))
        else:
            vocabularies.append(Vocabulary(name, rows, loss, None, loaded.tokenizer_files))
    study = Study(
        loaded=loaded,
        scores=WidthScores(numbered("scores-heads"), numbered("scores-neurons"), numbered("scores-lost")),
        heads=[curve.numpy() for curve in numbered("heads")],
        neurons=[curve.numpy() for curve in numbered("neurons")],
        drops=said["drops"],
        matrices={bits: {(part, unit): v for part, unit, v in losses} for bits, losses in said["matrices"]},
        tables=dict(said["tables"]),
        ranks=dict(said["ranks"]),
        vocabularies=vocabularies,
        joins=[Join(*join) for join in said["joins"]],
    )
    sums, losses, drops = said["scales"]
    return study, Scales(Shape(tuple(sums), tuple(losses)), drops)
