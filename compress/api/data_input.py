"""Data that a notebook holds, as a folder that the commands read: equal rows are written once."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from compress.errors import UserError, printable

if TYPE_CHECKING:
    import pandas
    from datasets import Dataset, DatasetDict

Rows: TypeAlias = "Sequence[Mapping[str, Any]] | pandas.DataFrame"
Data: TypeAlias = "str | PathLike[str] | Rows | Mapping[str, Rows] | Dataset | DatasetDict"
"""A file or folder, `hf:name`, an embedded set; rows, or rows by split, as lists of dictionaries, data frames or
`datasets` objects."""

CACHE = "api-data"
"""Folder of the cache that holds copies of rows in memory."""
MOST = 64
"""Data sets that stay in the cache."""
FORMS = (
    "a path, s3://BUCKET/KEY, hf:name, a built-in dataset, a DataFrame, a list of dictionaries, a dictionary of these "
    "by split, or a datasets.Dataset"
)


def data_name(data: Data, split: str = "train") -> str:
    """What `--data` calls it: a name as it is, anything else as a folder of the cache, found again by its content.

    split: what rows without splits are. Raises UserError for an object that holds no rows.
    """
    if isinstance(data, str | PathLike):
        return fspath(data)
    if _is_dataset(data):
        return str(_dataset_folder(data, split))
    splits: Mapping[Any, Any] = data if isinstance(data, Mapping) else {split: data}
    if not splits:
        raise UserError("the dictionary has no splits", where="data", do=f"give {FORMS}")
    files = {f"{name}.jsonl": _lines(rows, str(name)) for name, rows in splits.items()}
    digest = hashlib.sha256()
    for name, text in sorted(files.items()):
        digest.update(f"{name}\0{len(text)}\0".encode() + text)

    def fill(folder: Path) -> None:
        from compress.storage import atomic

        for name, text in files.items():
            atomic.write_bytes(folder / name, text)

    return str(_kept(digest, fill))


def text_name(text: Data | Sequence[str]) -> str:
    """What `--unlabelled` calls text without labels: as `data_name`; a list may also hold plain texts."""
    if isinstance(text, Sequence) and not isinstance(text, str) and text and all(isinstance(t, str) for t in text):
        return data_name([{"text": one} for one in text], "unlabelled")
    return data_name(text, "unlabelled")  # type: ignore[arg-type]


def _kept(digest: Any, fill: Callable[[Path], None]) -> Path:
    from compress.storage.cache import keep_folder, private_folder

    return keep_folder(private_folder(CACHE), digest.hexdigest()[:32], fill, MOST)


def _lines(rows: Any, split: str) -> bytes:
    """Rows as JSON lines. Raises UserError for what is no table."""
    if not split or "/" in split or "\0" in split:
        raise UserError(f"{split!r} is not a split name", where="data", do="use train, validation or test")
    if not _is_frame(rows) and (not isinstance(rows, Sequence) or isinstance(rows, str | bytes)):
        found = type(rows).__name__
        raise UserError(f"a value of type {found} is not a dataset", where="data", do=f"give {FORMS}")
    if not len(rows):
        raise UserError(f"{split} has no rows", where="data", do="give at least one row")
    if _is_frame(rows):
        return _frame_lines(rows).encode()
    return b"".join(_line(row, place) for place, row in enumerate(rows))


def _line(row: Any, place: int) -> bytes:
    if not isinstance(row, Mapping):
        why = f"its type is {type(row).__name__}"
        raise UserError("not a dictionary of columns", where=f"data: row {place}", why=why, do="e.g. {'text': …}")
    try:
        return (json.dumps(row, ensure_ascii=False, default=_plain) + "\n").encode()
    except UnicodeError as error:
        raise _unreadable(f"data: row {place}", error) from None
    except (TypeError, ValueError) as error:
        raise UserError("a value is not text, a number or a list", where=f"data: row {place}", why=str(error)) from None


def _frame_lines(rows: Any) -> str:
    twice = sorted({str(name) for name in rows.columns[rows.columns.duplicated()]})
    if twice:
        raise UserError(f"several columns are called '{printable(twice[0], 60)}'", where="data", do="rename them")
    try:
        return rows.to_json(orient="records", lines=True, force_ascii=False, date_format="iso")
    except UnicodeError as error:
        raise _unreadable("data", error) from None


def _unreadable(where: str, error: UnicodeError) -> UserError:
    return UserError("the text is not valid Unicode", where=where, why=str(error), do="decode it, or drop the row")


def _plain(value: Any) -> Any:
    """A number or an array of numpy or torch."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"found a {type(value).__name__}")


def _is_frame(value: Any) -> bool:
    pandas = sys.modules.get("pandas")  # who holds a frame has imported it
    return pandas is not None and isinstance(value, pandas.DataFrame)


def _is_dataset(value: Any) -> bool:
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(value, datasets.Dataset | datasets.DatasetDict)


def _dataset_folder(data: Any, split: str) -> Path:
    """As `save_to_disk` writes it, which keeps the names of labels."""
    from datasets import Dataset, DatasetDict

    from compress.storage.libraries import write_dataset

    splits = DatasetDict({split: data}) if isinstance(data, Dataset) else data
    digest = hashlib.sha256()
    for name, rows in sorted(splits.items(), key=lambda pair: str(pair[0])):
        digest.update(f"{name}\0{len(rows)}\0{rows.features}".encode())
        for text in _contents(rows):
            digest.update(text)
    return _kept(digest, lambda folder: write_dataset(folder, splits))


def _contents(rows: Dataset) -> Iterator[bytes]:
    for batch in rows.with_format(None).iter(batch_size=1000):
        yield json.dumps(batch, default=str).encode()
