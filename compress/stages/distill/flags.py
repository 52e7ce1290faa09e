"""The flags of `compress distill`, and what they mean in a recipe."""

from __future__ import annotations

from compress.errors import UserError
from compress.stages.shared.flags import GENERAL_TEACHER, RECOVERY, Flag, Keys, Table, share

MOST_ROWS = 10**12


def _checkpoint(model: str, flag: str) -> Keys:
    """Another model than the teacher: the recipe's layers are the teacher's."""
    return Keys({"student.model": model, "student.layers": None, "student.count": None})


def _layers(text: str, flag: str) -> Keys:
    """`0,2,4` → these layers; `uniform:3` → a rule with their number; `uniform` → with half. Raises UserError."""
    rule, colon, count = text.partition(":")
    if colon and not count.strip().isdecimal():
        raise UserError("not a rule with a number of layers", where=f"{flag} {text}", do="write it as uniform:3")
    layers = rule if colon or not rule[:1].isdigit() else _numbers(rule, flag, text)
    return Keys({"student.layers": layers, "student.count": int(count) if colon else None})


def _widths(text: str, flag: str) -> int | list[int]:
    """`6` → 6, for all layers; `6,4` → [6, 4], one number a layer. Raises UserError."""
    found = _numbers(text, flag, text)
    return found[0] if len(found) == 1 else found


def _hidden(text: str, flag: str) -> int | str:
    """`half`, or a number of channels. Raises UserError."""
    if text != "half" and not (text.isdecimal() and text.isascii() and len(text) < 10):
        raise UserError("not a hidden size", where=f"{flag} {text}", do="give half, or a number such as 192")
    return text if text == "half" else int(text)


def _numbers(text: str, flag: str, given: str) -> list[int]:
    parts = [part.strip() for part in text.strip("[]").split(",")]
    if not all(part.isdecimal() and part.isascii() and len(part) < 10 for part in parts):
        do = "separate them with commas, e.g. 0,2,4"
        raise UserError("not a list of whole numbers", where=f"{flag} {given}", do=do)
    return [int(part) for part in parts]


def _balance(text: str, flag: str) -> int | str:
    """`even`, or a number of rows. Raises UserError."""
    if text == "even":
        return text
    if not (text.isdecimal() and text.isascii() and 0 < int(text) <= MOST_ROWS):
        raise UserError("not a number of rows", where=f"{flag} {text}", do="give even, or a number such as 5000")
    return int(text)


TABLE = Table(
    kind="distill",
    recipe="distilbert",
    every=True,
    flags=(
        GENERAL_TEACHER,
        Flag(
            "--seeds", "", "Repeat the run with N seeds, each in its own folder; report mean and spread.", kind="int",
            low=2, high=100,
        ),
        Flag(
            "--teacher-cache", "cache.path", "Cache teacher outputs in this folder: later epochs, seeds and students "
            "read them.", metavar="FOLDER",
        ),
        Flag(
            "--min-confidence", "row_filter.min_confidence", "Leave out rows without labels on which the teacher's "
            "largest probability is below P.", kind="float", metavar="P", convert=share,
        ),
        Flag(
            "--max-confidence", "row_filter.max_confidence", "Leave out rows without labels on which it is above P, "
            "such as 0.999.", kind="float", metavar="P", convert=share,
        ),
        Flag(
            "--balance", "row_filter.balance", "Maximum number of rows without labels of each class that the teacher "
            "predicts, or even for the even share.", metavar="N|even", convert=_balance,
        ),
        Flag(
            "--disagreement", "row_filter.disagreement", "Keep the rows without labels on which the teacher disagrees "
            "most with: student (as initialized), teachers (several) or a model folder.", metavar="MODEL",
        ),
        Flag(
            "--stop", "stop", "What ends training and selects the best weights: the validation metric, or the "
            "agreement with the teacher on held-out text without labels.", "training",
            choices=("validation", "agreement"),
        ),
        Flag(
            "--plan-data", "", "Print the training rows that each source would add, with examples; train nothing.",
            "output", "switch",
        ),
        Flag(
            "--no-control", "control", "Skip the control: the same student trained on hard labels only.",
            kind="switch", constant=False,
        ),
        Flag(
            "--check", "", "Overfit 64 examples (about a minute) as a sanity check; no model is saved.", "training",
            "switch",
        ),
        Flag(
            "--curve", "", "Answer how many labels you need: train control and student with several numbers of "
            "labelled and of unlabelled rows, and print one table.", "training", "switch",
        ),
        Flag(
            "--curve-labelled", "", "Numbers of labelled rows of --curve (default: 100,300,1000,all).", "training",
            metavar="LIST",
        ),
        Flag(
            "--curve-unlabelled", "", "Numbers of unlabelled rows of --curve (default: 0,1000,10000,all).", "training",
            metavar="LIST",
        ),
        Flag(
            "--student", "student.model", "Take the student's layers from this checkpoint, not from the teacher.",
            "input", "model", convert=_checkpoint, within=True,
        ),
        Flag(
            "--layers", "student.layers", "Layers to keep: 0,2,4; or a rule with their number, such as uniform:3, or "
            "alone for half of the layers, such as every-other-from-last.", metavar="LIST", convert=_layers,
            within=True,
        ),
        Flag(
            "--hidden-size", "student.hidden", "Hidden size of the student: a number, or half of the teacher's.",
            metavar="N|half", convert=_hidden, within=True,
        ),
        Flag(
            "--num-heads", "student.heads", "Attention heads of each layer: a number, or a list, one per layer.",
            metavar="N", convert=_widths, within=True,
        ),
        Flag(
            "--intermediate-size", "student.intermediate_size", "Feed-forward neurons of each layer: a number, or a "
            "list, one per layer.", metavar="N", convert=_widths, within=True,
        ),
        Flag(
            "--init", "student.init", "Initialization of the student's weights.",
            choices=("teacher", "selection", "svd", "projection", "random"), within=True,
        ),
        *RECOVERY,
    ),
)  # fmt: skip
