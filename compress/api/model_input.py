"""A model that a notebook holds, as a folder that the commands read: equal weights are written once."""

from __future__ import annotations

import hashlib
import tempfile
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard

from compress.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Located(Protocol):
    """A `compress.Model`."""

    @property
    def path(self) -> Path: ...


ModelLike: TypeAlias = "str | PathLike[str] | Located | tuple[PreTrainedModel, PreTrainedTokenizerBase]"
"""A folder, `hf:org/name`, `runs:/…`, `models:/…`; what `compress.load` returned; or a model of transformers with its
tokenizer."""

CACHE = "api-models"
"""Folder of the cache that holds copies of models in memory."""
MOST = 16
"""Models that stay in the cache."""
FORMS = "a folder, hf:org/name, a compress Model, or a pair (transformers model, tokenizer)"


def model_name(model: ModelLike, keyword: str = "model") -> str:
    """What commands call it: a name as it is, a pair of transformers as a folder of the cache, found again by content.

    keyword: which one it was given as. Raises UserError for any other object.
    """
    if isinstance(model, str | PathLike):
        return fspath(model)
    if is_pair(model):
        return str(_written(*model))
    if isinstance(path := getattr(model, "path", None), Path):
        return str(path)
    if hasattr(model, "save_pretrained"):
        raise UserError(
            "a model needs its tokenizer", where=keyword, do="give both: (model, tokenizer), or load(model, tokenizer)"
        )
    raise UserError(f"a value of type {type(model).__name__} is not a model", where=keyword, do=f"give {FORMS}")


def is_pair(model: object) -> TypeGuard[tuple[PreTrainedModel, PreTrainedTokenizerBase]]:
    """Whether this is a model of transformers with its tokenizer."""
    return isinstance(model, tuple) and len(model) == 2 and all(hasattr(one, "save_pretrained") for one in model)


def _written(model: Any, tokenizer: Any) -> Path:
    from compress.storage import atomic
    from compress.storage.cache import keep_folder, private_folder
    from compress.storage.libraries import write_pretrained

    with tempfile.TemporaryDirectory() as scratch:
        write_pretrained(Path(scratch), model, tokenizer)
        digest = hashlib.sha256()
        files = sorted(path for path in Path(scratch).rglob("*") if path.is_file())
        for path in files:
            with path.open("rb") as file:
                digest.update(
                    f"{path.relative_to(scratch)}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\0".encode()
                )

        def fill(folder: Path) -> None:
            for path in files:
                atomic.write_bytes(folder / path.relative_to(scratch), path.read_bytes())

        return keep_folder(private_folder(CACHE), digest.hexdigest()[:32], fill, MOST)
