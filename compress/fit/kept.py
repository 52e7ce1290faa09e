"""What a model needs, studied once and kept: a fit of the same model and data to other bounds begins with its plans.

The study takes a third of a fit without training. What is kept stands for the model, the data, how they were read, and
this program; anything else is studied anew. A file that cannot be read is as none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save

from compress.contracts import WidthScores
from compress.data.tokenstore import cache_folder
from compress.durable import atomic
from compress.fit.blocks import Blocks
from compress.fit.planner import Shape
from compress.fit.plans import Scales, Space
from compress.fit.realise import Maker
from compress.fit.study import Student, Study, Vocabulary
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import LoadedModel
from compress.pipeline.cache import code

FORMAT = 1
SAID = "said"
DIGEST = 32  # bytes of sha256
UNREADABLE = (OSError, ValueError, LookupError, TypeError, SafetensorError)  # of another version


def studied(
    student: Student, blocks: Blocks, stop: Callable[[], None], say: Callable[[str], None]
) -> tuple[Study, Scales]:
    """What the student's model needs, and how planned losses become measured ones: read, or found now and kept."""
    path = place(student, blocks)
    if (found := _read(path, student.loaded)) is not None:
        say(f"what the model needs: as an earlier fit found, {path}")
        return found
    say("studying what the model needs")
    study = student.study()
    scales = Maker(student, Space(study, blocks), stop).scales()
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(path, content(study, scales))
    return study, scales


def place(student: Student, blocks: Blocks) -> Path:
    """Where it is kept: a name for all that a study depends on. Its probes are made by what blocks cost."""
    serving = student.serving
    made_for = [
        FORMAT, code(), torch.__version__, torch.get_num_threads(), modelfolder.fingerprint(student.loaded.path),
        student.table.fingerprint, student.task.kind, dict(student.table.settings), student.max_length, student.seed,
        serving.runtime, serving.device, blocks.as_json(),
    ]  # fmt: skip
    digest = hashlib.sha256(json.dumps(made_for, sort_keys=True).encode()).hexdigest()
    return cache_folder() / "studies" / f"{digest[:32]}.study"


def content(study: Study, scales: Scales) -> bytes:
    """A study as a file holds it: sha256, then arrays by name as safetensors, and what is no array as JSON."""
    said = {
        "drops": list(study.drops),
        "matrices": [
            [bits, [[*unit, lost] for unit, lost in losses.items()]] for bits, losses in study.matrices.items()
        ],
        "tables": list(study.tables.items()),
        "ranks": list(study.ranks.items()),
        "vocabularies": [[v.name, v.rows, v.loss, v.kept is not None, list(v.files)] for v in study.vocabularies],
        "scales": [scales.shape.sums, scales.shape.losses, scales.drops],
        "counts": [len(study.heads), len(study.neurons), len(study.scores.lost)],
    }
    arrays = {SAID: _bytes(json.dumps(said).encode()), **dict(_arrays(study))}
    made = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    return hashlib.sha256(made).digest() + made


def _arrays(study: Study) -> Iterator[tuple[str, np.ndarray]]:
    scores = study.scores
    for name, tensors in (("heads", scores.heads), ("neurons", scores.neurons), ("lost", scores.lost)):
        yield from ((f"score-{name}-{i}", tensor.numpy()) for i, tensor in enumerate(tensors))
    for name, curves in (("heads", study.heads), ("neurons", study.neurons)):
        yield from ((f"curve-{name}-{i}", np.asarray(curve)) for i, curve in enumerate(curves))
    for i, vocabulary in enumerate(study.vocabularies):
        if vocabulary.kept is not None:
            yield f"kept-{i}", vocabulary.kept
            yield from ((f"file-{i}-{j}", _bytes(data)) for j, data in enumerate(vocabulary.files.values()))


def _bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def _read(path: Path, loaded: LoadedModel) -> tuple[Study, Scales] | None:
    if not path.is_file():
        return None
    try:
        data = path.read_bytes()
        if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
            return None
        arrays = load(data[DIGEST:])
        return _of(arrays, json.loads(arrays[SAID].tobytes()), loaded)
    except UNREADABLE:
        return None


def _of(arrays: Mapping[str, np.ndarray], said: Mapping[str, Any], loaded: LoadedModel) -> tuple[Study, Scales]:
    heads, neurons, lost = said["counts"]

    def scores(name: str, count: int) -> list[torch.Tensor]:
        return [torch.from_numpy(arrays[f"score-{name}-{i}"]) for i in range(count)]

    def curves(name: str, count: int) -> list[np.ndarray]:
        return [arrays[f"curve-{name}-{i}"] for i in range(count)]

    def vocabulary(i: int, name: str, rows: int, loss: float, cut: bool, files: list[str]) -> Vocabulary:
        if not cut:
            return Vocabulary(name, rows, loss, None, loaded.tokenizer_files)
        made = {file: arrays[f"file-{i}-{j}"].tobytes() for j, file in enumerate(files)}
        return Vocabulary(name, rows, loss, arrays[f"kept-{i}"], made)

    study = Study(
        loaded=loaded,
        scores=WidthScores(scores("heads", heads), scores("neurons", neurons), scores("lost", lost)),
        heads=curves("heads", heads),
        neurons=curves("neurons", neurons),
        drops=said["drops"],
        matrices={bits: {(part, unit): v for part, unit, v in losses} for bits, losses in said["matrices"]},
        tables=dict(said["tables"]),
        ranks=dict(said["ranks"]),
        vocabularies=[vocabulary(i, *one) for i, one in enumerate(said["vocabularies"])],
    )
    sums, losses, drops = said["scales"]
    return study, Scales(Shape(tuple(sums), tuple(losses)), drops)
