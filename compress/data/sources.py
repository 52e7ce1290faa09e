"""Data by name: a file, a folder, `hf:name[/config]`, or an embedded set → a checked Table, ready to encode."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compress.data import columns, files, hub, labels, splitting, table, texts
from compress.data.columns import Asked
from compress.data.frame import Frame
from compress.data.randomness import order
from compress.data.table import UNLABELLED, Rows, Table, counted, first_rows
from compress.data.tasks import kinds, task_of
from compress.errors import UserError, did_you_mean, nearest, printable

# split → the names it goes by in files and on the hub
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
    "unlabelled": ("unlabelled", "unlabeled", "unsupervised"),
}
ALL = ("train", "validation", "test")
INFO_LIMIT = 16 << 20  # bytes of info.json that are read


@dataclass(frozen=True)
class Source:
    """What a name led to: splits as they were read, and what the data says of itself.

    single: one file without splits.
    """

    frames: Mapping[str, Frame]
    name: str
    info: Mapping[str, Any] = field(default_factory=dict)
    single: bool = False


def open_table(
    name: str,
    *,
    task: str | None = None,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    splits: Mapping[str, str] | None = None,
    needed: Sequence[str] = ALL,
    labels: Sequence[str] | None = None,
    expect_labels: Sequence[str] | None = None,
    bad_rows: str = "refuse",
    limit: int | None = None,
    seed: int = 0,
) -> Table:
    """Open a labelled data set.

    splits: our split name → the source's, where they differ.  needed: splits the caller will use; missing ones are cut
    from others, aloud.  labels: label names in the order of their ids.  expect_labels: a model's labels, whose order
    the table takes.  bad_rows: "refuse", or "drop" rows without text or label.  limit: most rows of each split.
    seed: of what is cut. Raises UserError for everything that is wrong with the data.
    """
    notes: list[str] = []
    source = open_source(name, notes, splits)
    asked = _asked(source.info, text_column, text_pair_column, label_column)
    first = next(iter(source.frames.values()))
    kind = _task(task, source, first, asked, named=text_column is not None)
    roles, more = columns.roles(first, task_of(kind).text_roles, asked, source.name)
    notes += more
    if "label" not in roles and set(source.frames) != {"unlabelled"}:
        raise UserError("which column is the label?", where=source.name, do=f"name it; {columns.listed(first)}")
    columns.same_columns(source.frames, roles, source.name)
    given, said = labels, source.info.get("label_names") or first.class_names.get(roles.get("label", ""))
    read = _read_labels(source, roles, given or said, expect_labels)
    notes += read.notes
    rows = {}
    for split, frame in source.frames.items():
        if split in read.hidden:
            notes.append(f"{split}: its labels are withheld (all -1 or empty), so it is not used")
            continue
        rows[split] = _rows(frame, roles, read.numbers.get(split), f"{source.name}: {split}", bad_rows, notes)
    rows = splitting.complete(rows, needed, seed, source.name, notes)
    texts.note_oddities(rows, notes)
    texts.note_repeats(rows, notes)
    if limit is not None:
        rows = {split: _limited(part, limit, seed) for split, part in rows.items()}
        notes.append(f"limited to {limit:,} rows a split: " + ", ".join(f"{len(r):,} {s}" for s, r in rows.items()))
    digest = table.fingerprint(rows, kind, read.names)
    return Table(rows, kind, read.names, roles, digest, source.name, notes)


# --- names ------------------------------------------------------------------------------------------------------


def open_source(name: str, notes: list[str], splits: Mapping[str, str] | None = None) -> Source:
    """Find and read what `name` means, as it is. Raises UserError with the nearest names."""
    if name.startswith("hf:"):
        found = hub.read_hub(name[3:])
        return Source(_choose({s: Frame.from_dataset(d) for s, d in found.items()}, splits, name), name)
    embedded = name.removeprefix("embedded:")
    if name.startswith("embedded:") or embedded in embedded_names():
        return Source(_embedded(embedded), f"embedded:{embedded}")
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(path, notes, splits)
    if not path.exists():
        raise _unknown(name, path)
    frame = files.read_file(path, notes)
    _hint_siblings(path, notes)
    return Source({"train": frame}, str(path), _info(path.parent) if path.stem in _stems() else {}, single=True)


def embedded_names() -> tuple[str, ...]:
    """The data sets that are generated on the spot."""
    from compress.data import embedded

    return tuple(embedded.NAMES)


def _embedded(name: str) -> dict[str, Frame]:
    from compress.data import embedded

    if name not in embedded.NAMES:
        raise UserError(f"there is no embedded data set '{printable(name, 60)}'", do=did_you_mean(name, embedded.NAMES))
    return {split: Frame.from_rows(rows) for split, rows in embedded.generate(name).items()}


def _unknown(name: str, path: Path) -> UserError:
    near = nearest(name, embedded_names())
    if near is not None:
        return UserError(f"no data set '{printable(name, 80)}'", do=f"did you mean the embedded set '{near}'?")
    error = files.missing(path)
    if "/" not in name or (name.count("/") == 1 and not path.parent.is_dir()):
        hint = f"or hf:{name} for the hub" if "/" in name else "or an embedded set: " + ", ".join(embedded_names())
        error = UserError(error.what, why=error.why, do=f"{error.do}, {hint}" if error.do else hint)
    return error


def _stems() -> set[str]:
    return {alias for aliases in SPLITS.values() for alias in aliases}


def _hint_siblings(path: Path, notes: list[str]) -> None:
    """A file called train.jsonl beside test.jsonl: say that the folder would bring both."""
    if path.stem.lower() in _stems():
        others = [
            p.name for p in sorted(path.parent.glob(f"*{path.suffix}")) if p != path and p.stem.lower() in _stems()
        ]
        if others:
            notes.append(f"only {path.name} is used; name the folder {path.parent} to use {', '.join(others)} too")


# --- folders ----------------------------------------------------------------------------------------------------


def _folder(path: Path, notes: list[str], splits: Mapping[str, str] | None) -> Source:
    saved = _saved(path)
    if saved is not None:
        return Source(_choose(saved, splits, str(path)), str(path), single=list(saved) == [""])
    held = [p for p in sorted(path.iterdir()) if p.is_file() and p.suffix.lower() in files.TABLES]
    by_stem: dict[str, Path] = {}
    for entry in held:
        if entry.name in ("info.json", "dataset_info.json", "state.json", "dataset_dict.json"):
            continue
        if entry.stem in by_stem:
            raise UserError(
                f"two files for '{entry.stem}'", where=str(path), why=f"{by_stem[entry.stem].name} and {entry.name}"
            )
        by_stem[entry.stem] = entry
    chosen = _match(list(by_stem), splits, str(path))
    if not chosen:
        names = [p.name for p in sorted(path.iterdir()) if not p.name.startswith(".")]
        shown = ", ".join(printable(n, 40) for n in names[:8]) + (" …" if len(names) > 8 else "")
        raise UserError(
            "the folder has no train, validation or test file",
            where=str(path),
            why=f"it holds {shown}" if names else "it is empty",
            do=f"name one file, or call them train, validation, test with one of {', '.join(files.TABLES)}",
        )
    frames = {split: files.read_file(by_stem[stem], notes) for split, stem in chosen.items()}
    return Source(frames, str(path), _info(path))


def _saved(path: Path) -> dict[str, Frame] | None:
    """What `save_to_disk` of the `datasets` library wrote, or None when this is another folder."""
    single = (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    if not single and not (path / "dataset_dict.json").is_file():
        return None
    from datasets import Dataset, load_from_disk

    try:
        with hub.quiet():
            made = load_from_disk(str(path))
    except Exception as error:  # the library raises many kinds for a damaged folder
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError("cannot read this saved data set", where=str(path), why=printable(first, 160)) from error
    found = {"train": made} if isinstance(made, Dataset) else {str(k): v for k, v in made.items()}
    return {split: Frame.from_dataset(rows) for split, rows in found.items()}


def _match(names: Sequence[str], splits: Mapping[str, str] | None, where: str) -> dict[str, str]:
    """our split → the source's name for it."""
    given = dict(splits or {})
    for split, wanted in given.items():
        if split not in SPLITS:
            raise UserError(f"unknown split '{split}'", do=did_you_mean(split, SPLITS))
        if wanted not in names:
            raise UserError(f"there is no split '{printable(wanted, 60)}'", where=where, do=did_you_mean(wanted, names))
    folded = {name.lower(): name for name in names}
    for split, aliases in SPLITS.items():
        hit = next((folded[alias] for alias in aliases if alias in folded), None)
        if hit is not None and hit not in given.values():
            given.setdefault(split, hit)
    return {split: given[split] for split in SPLITS if split in given}


def _choose(frames: Mapping[str, Frame], splits: Mapping[str, str] | None, where: str) -> dict[str, Frame]:
    chosen = _match(list(frames), splits, where)
    if not chosen:
        raise UserError("there is no train, validation or test split", where=where, why="found " + ", ".join(frames))
    return {split: frames[source] for split, source in chosen.items()}


def _info(folder: Path) -> Mapping[str, Any]:
    """info.json: task, columns and label names as the data's author gave them; empty where there is none."""
    path = folder / "info.json"
    try:
        if not path.is_file() or path.stat().st_size > INFO_LIMIT:
            return {}
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            "cannot read the data's description", where=str(path), why=printable(str(error), 120)
        ) from error
    if not isinstance(found, dict):
        raise UserError("the data's description is not a JSON object", where=str(path))
    names = found.get("label_names")
    if names is not None and not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
        raise UserError("label_names must be a list of names", where=str(path))
    return found


# --- roles, rows ------------------------------------------------------------------------------------------------


def _asked(info: Mapping[str, Any], text: str | None, pair: str | None, label: str | None) -> Asked:
    """The user's columns first, then those of info.json."""
    said = info.get("text_columns")
    said = [c for c in said if isinstance(c, str)] if isinstance(said, list) else []
    if text is None and pair is None and said:
        text, pair = said[0], said[1] if len(said) > 1 else None
    own = info.get("label_column")
    return Asked(text, pair, label or (own if isinstance(own, str) else None))


def _task(task: str | None, source: Source, first: Frame, asked: Asked, *, named: bool) -> str:
    said = source.info.get("task")
    if task is not None:
        return task_of(task).kind
    if isinstance(said, str) and not named:
        if said not in kinds():
            raise UserError(
                f"this data is for the task '{printable(said, 60)}'",
                where=source.name,
                do="known: " + ", ".join(kinds()),
            )
        return said
    return columns.choose_task(first, asked)


def _read_labels(
    source: Source, roles: Mapping[str, str], names: Sequence[str] | None, expected: Sequence[str] | None
) -> labels.Labels:
    if "label" not in roles:
        return labels.Labels({}, list(names or expected or ()))
    labelled = {s: f.columns[roles["label"]] for s, f in source.frames.items() if s != "unlabelled"}
    return labels.read_labels(labelled, source.name, names=names, expected=expected)


def _rows(
    frame: Frame, roles: Mapping[str, str], numbers: np.ndarray | None, where: str, bad_rows: str, notes: list[str]
) -> Rows:
    """One split with its texts and labels; rows that lack either are refused or dropped."""
    if bad_rows not in ("refuse", "drop"):
        raise UserError(f"unknown choice for bad rows '{bad_rows}'", do="known: refuse, drop")
    labelled = numbers is not None
    found = numbers if numbers is not None else np.full(frame.rows, UNLABELLED, dtype=np.int64)
    bad = {"label": found == UNLABELLED} if labelled else {}
    made = {}
    for role in [r for r in roles if r != "label"]:
        made[role], bad[role] = texts.read_text(frame.columns[roles[role]], f"{where}: column '{roles[role]}'")
    rows = Rows(made, found, np.arange(1, frame.rows + 1, dtype=np.int64))
    for role, at in bad.items():
        if at.any():
            told = f"{counted(int(at.sum()))} without a {role.replace('_', ' ')} ({first_rows(rows.numbers[at])})"
            if bad_rows == "refuse":
                raise UserError(
                    told,
                    where=where,
                    why=f"column '{roles[role]}'",
                    do="fill them in, or drop bad rows (bad_rows: drop)",
                )
            notes.append(f"{where}: {told}, dropped")
    lost = np.logical_or.reduce(list(bad.values()))
    if lost.all():
        raise UserError("no row is left", where=where)
    return rows.take(np.flatnonzero(~lost)) if lost.any() else rows


def _limited(rows: Rows, limit: int, seed: int) -> Rows:
    """At most `limit` rows: the same ones every time, from all over the split, in their order."""
    if limit < 1:
        raise UserError(f"a limit of {limit} rows leaves nothing", do="give 1 or more")
    if len(rows) <= limit:
        return rows
    return rows.take(np.sort(order(len(rows), "limit", seed)[:limit]))
