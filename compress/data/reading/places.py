"""Data by name: a file, a folder, `hf:name[/config]`, or an embedded set → its splits, as they were read."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from compress.data.reading import beir, files, hub
from compress.data.reading.frame import Frame
from compress.data.reading.names import is_elsewhere, make_unknown_error, path_of
from compress.data.text.language_codes import find_language_codes
from compress.errors import UserError, did_you_mean, list_some, printable
from compress.storage import manifest
from compress.storage.sent import find_name

# split → the names it goes by in files and on the hub
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
    "unlabelled": ("unlabelled", "unlabeled", "unsupervised"),
}
_TEXTS = tuple(suffix for suffix, kind in files.SUFFIXES.items() if kind == "text")
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_OTHER_TABLES = (".xlsx", ".xls", ".ods", ".orc", ".avro")
INFO = "info.json"
"""What describes the files of a folder: task, columns, label names, language."""
DESCRIPTIONS = (INFO, "dataset_info.json", "state.json", "dataset_dict.json", manifest.NAME)
"""Files beside tables that hold no rows."""
INFO_LIMIT = 16 << 20  # bytes of info.json that are read


@dataclass(frozen=True)
class Source:
    """What a name led to: splits as they were read, and what the data says of itself (info.json). documents: of a
    retrieval set, the texts that are searched."""

    frames: Mapping[str, Frame]
    name: str
    info: Mapping[str, Any] = field(default_factory=dict)
    documents: pa.ChunkedArray | None = None

    @property
    def first(self) -> Frame:
        """The split whose columns stand for all."""
        return next(iter(self.frames.values()))


def open_source(
    name: str,
    notes: list[str],
    splits: Mapping[str, str] | None = None,
    *,
    plain: bool = False,
    bad_rows: str = "refuse",
) -> Source:
    """Find and read what `name` means, as it is. plain: files of plain text are data too.  bad_rows: see `read_beir`.

    Raises UserError with the nearest names."""
    if not is_elsewhere(name):
        found = _on_disk(name, notes, splits, plain, bad_rows)
        return replace(found, name=find_name(found.name))
    if name.startswith("hf:"):
        found = hub.read_hub(name[3:])
        return Source(_choose({s: Frame.from_dataset(d) for s, d in found.items()}, splits, name, notes), name)
    return _embedded(name.removeprefix("embedded:"))


def find_language(name: str) -> tuple[str, ...]:
    """Codes such as `en` of the texts that `name` means, as info.json says them; what this program generates is
    English. Empty where nothing says it. Raises UserError for an unreadable info.json."""
    if is_elsewhere(name):
        return () if name.startswith("hf:") else ("en",)
    path = path_of(name)
    said = _info(path).get("language") if path.is_dir() else _info_beside(path).get("language")
    listed = said if isinstance(said, list) else [said]
    return find_language_codes(" ".join(one for one in listed if isinstance(one, str)))


def _on_disk(name: str, notes: list[str], splits: Mapping[str, str] | None, plain: bool, bad_rows: str) -> Source:
    path = path_of(name)
    if path.is_dir():
        return _beir(path, splits, notes, bad_rows) if beir.is_beir(path) else _folder(path, notes, splits, plain)
    if not path.exists():
        raise make_unknown_error(name, path)
    frame = files.read_file(path, notes, plain=plain)
    _hint_siblings(path, notes)
    return Source({"train": frame}, str(path), _info_beside(path))


@cache
def _embedded(name: str) -> Source:
    """A generated set, made once a process: tens of thousands of sentences take seconds."""
    from compress.data import embedded

    told = embedded.describe(name)
    info: dict[str, Any] = {"task": told.task}
    column = next((name for name in ("label", "labels", "score") if name in told.columns), None)
    if column is not None:
        info |= {"label_column": column} | ({"label_names": list(told.label_names)} if told.label_names else {})
    frames = {split: Frame.from_rows(rows) for split, rows in embedded.generate(name).items()}
    return Source(frames, f"embedded:{name}", info)


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


def _folder(path: Path, notes: list[str], splits: Mapping[str, str] | None, plain: bool) -> Source:
    saved = _saved(path)
    if saved is not None:
        return Source(_choose(saved, splits, str(path), notes), str(path))
    able = files.SUFFIXES if plain else files.TABLES
    held = [p for p in sorted(path.iterdir()) if p.is_file() and p.suffix.lower() in able]
    by_stem: dict[str, Path] = {}
    for entry in held:
        if entry.name in DESCRIPTIONS:
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
            why=f"it contains {shown}" if names else "it is empty",
            do=f"give one file, or name the files train, validation, test with one of {', '.join(able)}",
        )
    if not splits:
        _note_unread("files", {stem: one.name for stem, one in by_stem.items()}, chosen, notes)
        _note_unreadable(path, able, notes)
    frames = {split: files.read_file(by_stem[stem], notes, plain=plain) for split, stem in chosen.items()}
    return Source(frames, str(path), _info(path))


def _beir(path: Path, splits: Mapping[str, str] | None, notes: list[str], bad_rows: str) -> Source:
    """A retrieval set. Raises UserError as `beir.read_beir`, and where no split is called as ours are."""
    held = beir.list_judged(path)
    chosen = _match(held, splits, str(path))
    if not chosen:
        raise UserError(
            "no train, validation or test split", where=str(path / beir.JUDGED), why="found " + ", ".join(held)
        )
    frames, documents = beir.read_beir(path, chosen, notes, bad_rows)
    info = {"task": "embedding", "text_columns": [beir.QUERY], "label_column": beir.RELEVANT}
    return Source(frames, str(path), info, documents)


def is_saved(path: Path) -> bool:
    """Whether `save_to_disk` of the `datasets` library wrote this folder."""
    single = (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    return single or (path / "dataset_dict.json").is_file()


def _saved(path: Path) -> dict[str, Frame] | None:
    """What `save_to_disk` of the `datasets` library wrote, or None when this is another folder."""
    if not is_saved(path):
        return None
    from datasets import Dataset, load_from_disk

    try:
        with hub.silence_hub():
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
            raise UserError(f"split '{printable(wanted, 60)}' not found", where=where, do=did_you_mean(wanted, names))
    folded = {name.lower(): name for name in names}
    for split, aliases in SPLITS.items():
        hit = next((folded[alias] for alias in aliases if alias in folded), None)
        if hit is not None and hit not in given.values():
            given.setdefault(split, hit)
    return {split: given[split] for split in SPLITS if split in given}


def _note_unread(what: str, held: Mapping[str, str], chosen: Mapping[str, str], notes: list[str]) -> None:
    """Say which files or splits are left out: their rows may be those that a person meant to be tested on.

    held: name → how it is shown.  chosen: our split → the name that was taken for it.
    """
    others = []
    for name, shown in held.items():
        if name in chosen.values():
            continue
        split = next((split for split, aliases in SPLITS.items() if name.lower() in aliases), None)
        if split is not None and split in chosen:
            notes.append(
                f"{printable(shown, 40)} is not read: {printable(held[chosen[split]], 40)} is the {split} split"
            )
        elif Path(shown).suffix.lower() not in _TEXTS:
            others.append(printable(shown, 40))
    if others:
        notes.append(f"these {what} are not read: {list_some(others, 8)}; the names that are read: {', '.join(SPLITS)}")


def _note_unreadable(folder: Path, able: Collection[str], notes: list[str]) -> None:
    """Say which files have a split's name, and are tables in a form that is not read, such as train.jsonl.gz."""
    found = []
    for path in sorted(folder.iterdir()):
        stem, *suffixes = path.name.lower().split(".")
        packed = len(suffixes) > 1 and f".{suffixes[-1]}" in _PACKED and f".{suffixes[-2]}" in able
        if stem in _stems() and path.is_file() and (packed or path.suffix.lower() in _OTHER_TABLES):
            found.append(printable(path.name, 40))
    if found:
        notes.append(f"these files are not read: {list_some(found, 8)}; the formats that are read: {', '.join(able)}")


def _choose(
    frames: Mapping[str, Frame], splits: Mapping[str, str] | None, where: str, notes: list[str]
) -> dict[str, Frame]:
    chosen = _match(list(frames), splits, where)
    if not chosen:
        raise UserError("no train, validation or test split", where=where, why="found " + ", ".join(frames))
    if not splits:
        _note_unread("splits", {name: name for name in frames}, chosen, notes)
    return {split: frames[source] for split, source in chosen.items()}


def _info_beside(file: Path) -> Mapping[str, Any]:
    """The info.json beside a file that is called like a split."""
    return _info(file.parent) if file.stem in _stems() else {}


def _info(folder: Path) -> Mapping[str, Any]:
    """info.json: task, columns and label names as the data's author gave them; empty where there is none."""
    path = folder / INFO
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
