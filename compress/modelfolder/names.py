"""What the model of a folder is called: on its card, in tables, on pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

RESULTS = ("model", "student")
"""What the folder of a run calls its result."""


def model_name(folder: Path) -> str:
    """What a person calls the model of a folder: its name on the hub, where it is a snapshot from there."""
    repository = folder.parent.parent.name if folder.parent.name == "snapshots" else ""
    return repository[len("models--") :].replace("--", "/") if repository.startswith("models--") else folder.name


def model_label(folder: Path) -> str:
    """`model_name`, and for the result of a run the name of the run's folder, which a person gave."""
    found = folder.resolve()
    return (found.name in RESULTS and found.parent.name) or model_name(folder)


def label_models(folders: Sequence[Path]) -> list[str]:
    """What tables call models that are shown beside each other: no two alike.

    `model_label` of each. Folders of one name are called by as many folders above them as tell them apart, the same
    folder again by a number.
    """
    places = [folder.resolve() for folder in folders]
    above = [0] * len(places)
    while True:
        labels = [_label(place, more) for place, more in zip(places, above, strict=True)]
        first = [labels.index(label) for label in labels]
        clashes = {labels[i] for i, j in enumerate(first) if places[i] != places[j]}
        if not clashes:
            break
        above = [more + (label in clashes) for more, label in zip(above, labels, strict=True)]
    return [
        f"{label} ({number})" if (number := labels[: place + 1].count(label)) > 1 else label
        for place, label in enumerate(labels)
    ]


def _label(place: Path, above: int) -> str:
    """above: how many folders more than usual it names."""
    name = model_name(place)
    if name != place.name and above == 1:
        return f"{name}@{place.name[:8]}"
    return "/".join(place.parts[1:][-above - 1 :]) if above else model_label(place)
