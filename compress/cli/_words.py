"""What users of other tools type for commands and flags, and what it is called here."""

from __future__ import annotations

from collections.abc import Collection, Mapping

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "train": ("finetune",),
    "fine-tune": ("finetune",),
    "prune": ("prune-layers", "prune-width", "prune-vocab"),
    "eval": ("evaluate",),
    "test": ("evaluate",),
    "infer": ("predict",),
}
"""Command of another tool → commands here."""

FLAGS: Mapping[str, str] = {
    "--per-device-train-batch-size": "--batch-size",
    "--train-batch-size": "--batch-size",
    "--batch": "--batch-size",
    "--bs": "--batch-size",
    "--num-train-epochs": "--epochs",
    "--num-epochs": "--epochs",
    "--max-steps": "--steps",
    "--max-train-steps": "--steps",
    "--max-seq-length": "--max-length",
    "--max-seq-len": "--max-length",
    "--model-name-or-path": "--model",
    "--teacher-model": "--teacher",
    "--output-dir": "--output",
    "--dataset": "--data",
    "--dataset-name": "--data",
    "--train-file": "--data",
    "--fp32": "--precision",
    "--bf16": "--precision",
}
"""Flag of another tool, with dashes → flag here."""

AUGMENT = ("--augment", "--augment-model", "--augment-copies")
TRAINING = ("--epochs", "--steps", "--learning-rate", "--lr", "--batch-size", "--temperature", *AUGMENT)
NOT_TRAINED = ("prune-vocab", "tokenizer")
"""Commands that train no model."""


def flag_meant(name: str, known: Collection[str]) -> str | None:
    """The flag among `known` that a flag of another tool means; None: there is none."""
    dashed = name.lower().replace("_", "-")
    meant = FLAGS.get(dashed, dashed)
    return meant if meant in known else None


def why_not(name: str, command: str | None) -> str | None:
    """What to do instead of a training flag that a command does not have; None: nothing is known."""
    dashed = name.lower().replace("_", "-")
    flag = FLAGS.get(dashed, dashed)
    if flag in TRAINING and command in NOT_TRAINED:
        return f"{command} trains no model; remove {name}"
    if flag in ("--temperature", *AUGMENT) and command in ("finetune", "pretrain"):
        return f"{command} trains without a teacher; remove {name}, or use compress distill"
    return None


def command_meant(name: str) -> str | None:
    """`did you mean …?` for a command of another tool; None: it is not known."""
    found = [f"'{one}'" for one in COMMANDS.get(name.lower().replace("_", "-"), ())]
    if not found:
        return None
    return f"did you mean {' or '.join([*([', '.join(found[:-1])] if len(found) > 1 else []), found[-1]])}?"
