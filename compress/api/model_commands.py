"""The commands that look at one model, or write it anew, as functions: named like the commands, options like the flags.

`data`, `quiet` and the other keywords are those of `verbs`. All raise `compress.UserError`, one line each.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from compress.api.command import call_for, path_text
from compress.api.data_input import Data, data_name
from compress.api.model import Model
from compress.api.model_input import FORMS, ModelLike, is_pair, model_name
from compress.api.result import Result, Table
from compress.errors import UserError

Folder = str | PathLike[str]


class WrittenModel(Result):
    """What was done, and the model folder that was written."""

    @property
    def model(self) -> Model:
        """The model that was written."""
        return Model(Path(self["folder"]))


class Analysis(Result):
    """Tables about a model's layers; plots of them lie in `folder` as SVG."""

    @property
    def tables(self) -> dict[str, Table]:
        """Name, such as `cka` or `anisotropy` → (columns, rows) of text."""
        return {name: (one["columns"], one["data"]) for name, one in self["tables"].items()}

    @property
    def table(self) -> Table:
        """(columns, rows): the isotropy of the vectors of every layer."""
        return self.tables["anisotropy"]


def analyze(
    model: ModelLike,
    data: Data,
    *,
    against: ModelLike | None = None,
    output: Folder | None = None,
    quiet: bool = False,
    **options: Any,
) -> Analysis:
    """Inspect a model's layers: CKA similarity, isotropy, linear probes: `compress analyze`.

    against: the model that it was made from.  options: flags of the command, such as `quantization=True, rows=256`.
    """
    told = {**options, "data": data_name(data), "against": None if against is None else model_name(against, "against")}
    told["output"] = None if output is None else path_text(output, "output")
    return call_for(Analysis, "analyze", told, model_name(model), quiet=quiet)


def calibrate(
    model: ModelLike, data: Data, *, output: Folder, split: str = "validation", quiet: bool = False, **options: Any
) -> WrittenModel:
    """Fit a softmax temperature on labelled data: `compress calibrate`.

    output: a new folder for the model. Its predictions are unchanged; only the probabilities change.
    """
    told = {**options, "data": data_name(data, split), "split": split, "output": path_text(output, "output")}
    return call_for(WrittenModel, "calibrate", told, model_name(model), quiet=quiet)


def cascade(
    models: ModelLike | Sequence[ModelLike],
    data: Data,
    *,
    output: Folder,
    max_drop: float = 0.5,
    confidence: float = 90.0,
    exit_layers: str | Sequence[int] | None = None,
    quiet: bool = False,
    **options: Any,
) -> WrittenModel:
    """Join models into one that answers easy texts with a small model, the others with larger ones: `compress cascade`.

    models: two or more, in any order; with `exit_layers` one, to which early exits are added.  exit_layers: layers
    after which it may answer, such as `[2, 4]`, or "auto".  data: its validation rows choose the thresholds, its test
    rows measure the result.  output: a new folder.  max_drop: points of accuracy lost against the largest
    model.  confidence: percent, 50 to 99.8, with which the loss on other texts is within that, if the validation rows
    did not choose the models. The certificate is in `to_dict()["certificate"]`, None where a single model is as fast
    and was copied. Raises UserError where the loss on the test rows is above `max_drop`; the error's `result` is then
    what this function returns otherwise.
    """
    told = {**options, "data": data_name(data), "max_drop": max_drop, "confidence": confidence}
    told["output"] = path_text(output, "output")
    if exit_layers is not None:
        told["exit_layers"] = exit_layers if isinstance(exit_layers, str) else ",".join(map(str, exit_layers))
    return call_for(WrittenModel, "cascade", told, *map(model_name, _list_models(models)), quiet=quiet)


def convert(model: Folder, *, output: Folder, quiet: bool = False, **options: Any) -> WrittenModel:
    """Convert a model folder whose only weights are pytorch_model.bin to safetensors: `compress convert`.

    The pickle is read in a process of its own with limits, and only tensors are taken from it.  output: a new folder;
    the original is not changed.
    """
    told = {**options, "output": path_text(output, "output")}
    return call_for(WrittenModel, "convert", told, path_text(model, "model"), quiet=quiet)


def extend(
    model: ModelLike,
    max_positions: int,
    *,
    output: Folder,
    window: int | None = None,
    quiet: bool = False,
    **options: Any,
) -> WrittenModel:
    """Extend a model to sequences longer than 512 tokens, as Longformer extends RoBERTa: `compress extend`.

    max_positions: the longest sequence in tokens.  window: tokens that each token attends to on each side; None: all.
    """
    told = {**options, "max_positions": max_positions, "window": window, "output": path_text(output, "output")}
    return call_for(WrittenModel, "extend", told, model_name(model), quiet=quiet)


def verify(model: ModelLike, data: Data | None = None, *, quiet: bool = False, **options: Any) -> Result:
    """Re-check the certificate of a model that `fit` made on this machine: `compress verify`.

    data: the rows that it was certified on; None: quality is not checked.  Raises UserError where there is no
    certificate, and for a file that is not the one that was certified.
    """
    told = {**options, "data": None if data is None else data_name(data, "test")}
    return call_for(Result, "verify", told, model_name(model), quiet=quiet)


def promote(
    models: ModelLike | Sequence[ModelLike],
    alias: str,
    *,
    name: str | None = None,
    data: Data | None = None,
    against: ModelLike | None = None,
    split: str = "test",
    quiet: bool = False,
    **options: Any,
) -> Result:
    """Register the best of some models in MLflow's model registry and give it an alias: `compress promote --as alias`.

    name: of the registered model; None: the data that the model was trained on.  options: gates such as
    `max_drop=1.0, max_mb=20, max_ms=5`. Raises UserError where no model passes the gates.
    """
    several = _list_models(models)
    if not several:
        raise UserError("no model is given", where="compress.promote: models", do=f"give {FORMS}, or a list of these")
    told = {**options, "as": alias, "name": name, "split": split}
    told |= {"data": None if data is None else data_name(data, split)}
    told |= {"against": None if against is None else model_name(against, "against")}
    return call_for(Result, "promote", told, *map(model_name, several), quiet=quiet)


def _list_models(models: ModelLike | Sequence[ModelLike]) -> list[Any]:
    """One model, or several, as a list."""
    return list(models) if isinstance(models, list | tuple) and not is_pair(models) else [models]
