"""Commands with `--device cuda` on the simulated device: prints {command: [exit code, last lines of its errors]}.

Argument: a folder to work in. One teacher is made; each command reads it, or what an earlier one made.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import traceback
from pathlib import Path

import device  # first: it loads the shim before torch
import e2e_toy as toy  # pyright: ignore[reportMissingImports]
import pytest
import torch
from calibratable import make_overconfident
from haste import (
    check_files_in_onnxruntime_alone,
    do_not_wait_for_quiet,
    never_wait_for_the_disk,
    send_to_store,
    time_few_calls,
)
from sentence_folders import as_sentence_transformers

from compress.cli import main as frame
from compress.modelfolder.folder import load_model, save_model
from compress.training import length

TEACHER = ("run", "smoke-teacher", *toy.DATA, "--output", "runs/teacher")
STUDENT = "runs/task/student"
QUICK = ("--data", "data", "--quiet", "--recipe", "./quick-{}.yaml")
"""Of a command that trains: `quick-COMMAND.yaml` is its recipe with few timed calls."""
EMBEDDER, SHARP, LONG = "embedder", "sharp", "long"
"""Made of the teacher by `make_inputs`: an embedding model, an overconfident one, one with a window of tokens."""
TEXTS = ("--data", "corpus.txt", "--max-length", "20", "--steps", "2")
COMMANDS: tuple[tuple[str, ...], ...] = (
    (*toy.DISTILL, "--output", "runs/task", "--set", "stages.*.training.cuda_graphs=true"),
    ("evaluate", STUDENT, "--data", "data"),
    ("benchmark", toy.TEACHER, STUDENT, "--length", "16", "--repeats", "5"),
    ("benchmark", toy.TEACHER, "--length", "16", "--repeats", "5", "--runtime", "torch-graph"),
    ("predict", STUDENT, "she said the film was good"),
    ("analyze", STUDENT, "--data", "data"),
    ("finetune", toy.PRETRAINED, *QUICK, "--deterministic"),
    ("prune-layers", toy.TEACHER, *QUICK, "--keep", "2"),
    ("prune-width", toy.TEACHER, *QUICK),
    ("prune-vocab", toy.TEACHER, *QUICK),
    ("share", toy.TEACHER, *QUICK),
    ("factorize", toy.TEACHER, *QUICK),
    ("sparsify", toy.TEACHER, *QUICK),
    ("quantize", toy.TEACHER, *QUICK),
    ("drop-tokens", toy.TEACHER, *QUICK, "--keep-tokens", "50"),
    ("finetune", LONG, *QUICK),
    ("calibrate", SHARP, "--data", SHARP + "-rows", "--output", "calibrated"),
    ("make-static", EMBEDDER, *TEXTS, "--dimensions", "6", "--quiet"),
    ("reduce-dimensions", EMBEDDER, *TEXTS, "--quiet"),
    ("cascade", STUDENT, toy.TEACHER, "--data", "data", "--max-drop", "40", "--output", "cascade"),
    ("cascade", toy.TEACHER, "--exit-layers", "1,2", "--data", "data", "--max-drop", "40", "--output", "early"),
    ("fit", toy.TEACHER, "--data", "data", "--length", "24", "--plans", "1", "--max-mb", "0.2", "--uncertified"),
)


def run(words: tuple[str, ...]) -> list[object]:
    """(exit code, the end of what it said)."""
    words = tuple(word.format(words[0]) for word in words)
    said = io.StringIO()
    sys.argv = ["compress", *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            code = int(frame.main([*words, "--device", "cuda"]))
        except BaseException:
            traceback.print_exc(file=said)
            code = -1
    return [code, said.getvalue()[-2000:]]


def prepare(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Data, recipes and short trainings."""
    toy.write_data(folder / "data")
    toy.write_corpus(folder / "corpus.txt")
    (folder / "task.yaml").write_text(toy.TASK, encoding="utf-8")
    for words in COMMANDS:
        if QUICK[-1] in words:
            text = f"extends: {words[0]}\n{toy.QUICK}"
            (folder / QUICK[-1].format(words[0])).write_text(text, encoding="utf-8")
    for name, steps in toy.SHORT_LENGTH.items():
        patch.setattr(length, name, steps)
    for speed_up in (do_not_wait_for_quiet, time_few_calls, check_files_in_onnxruntime_alone):
        speed_up(patch)
    patch.chdir(folder)
    patch.setenv("COMPRESS_CACHE", str(folder / "cache"))


def make_inputs() -> None:
    """What a command reads and no other makes on a device."""
    loaded = load_model(toy.PRETRAINED, keep=())
    folder = save_model(Path(EMBEDDER), loaded.model, tokenizer_files=loaded.tokenizer_files)
    as_sentence_transformers(folder, loaded.config.hidden, pooling="mean")
    shutil.copytree(toy.TEACHER, SHARP)
    make_overconfident(Path(SHARP), Path(f"{SHARP}-rows"))
    assert frame.main(["extend", toy.TEACHER, "--max-positions", "128", "--window", "4", "--output", LONG]) == 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    wanted = set(sys.argv[2:])
    found: dict[str, list[object]] = {}
    with pytest.MonkeyPatch.context() as patched, never_wait_for_the_disk():
        prepare(Path(sys.argv[1]), patched)
        send_to_store(False)
        with device.simulate():
            for one in (TEACHER, *COMMANDS):
                if not wanted or one is TEACHER or one[0] in wanted:
                    found[" ".join(one)] = run(one)
                if one is TEACHER:
                    if found[" ".join(one)][0] != 0:
                        break
                    make_inputs()
    print(json.dumps(found))
