"""The commands as functions: models and data in memory or by name, keyword arguments named like the flags.

What all of them take beside what they name:

- `data`: a path, `hf:name`, an embedded set, a DataFrame, a list of dictionaries, these by split, or a
  `datasets.Dataset` or `DatasetDict`.
- `output`: a new folder for the run; None: `runs/<recipe>`.
- `recipe`: a recipe's name or file in place of the function's own.
- `training`: values of `training:` for every stage that trains: `{"steps": 200, "learning_rate": 1e-4}`.
- `set`: any other value of the recipe by its path: `{"stages.0.rows": 512}`.
- `quiet`: no notes and no progress on stderr.
- any other flag of the command, underscored: `seed=1, device="cpu", threads="auto", max_length=64, limit=1000`;
  `seeds=3, workers=2` and `sweep={"stages.0.training.learning_rate": [1e-4, 3e-4]}` make several runs.

All raise `compress.UserError`, one line that says what is wrong and what to do, and return when the run is done. An
error that comes after the results were there, such as that of a model of `fit` without a certificate, has them in its
attribute `result`; it is None otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeGuard

from compress.api.command import call_for, path_text
from compress.api.data_input import Data, data_name, text_name
from compress.api.model import Model
from compress.api.model_input import ModelLike, model_name
from compress.api.result import Result
from compress.errors import UserError
from compress.stages.pretrain.flags import TABLE as PRETRAIN
from compress.stages.quantize.flags import TABLE as QUANTIZE

if TYPE_CHECKING:
    from pathlib import Path

Settings = Mapping[str, Any]
Folder = str | PathLike[str]
Layers = int | str | Sequence[int]
STUDENTS = (
    "give a number of layers, a list of layers such as [0, 2, 4], a rule such as 'uniform:3', a dictionary such as "
    "{'layers': [0, 2], 'hidden': 192}, or a model"
)


class RunResult(Result):
    """What a run left: its model, the figures of all models that it measured, and its folder."""

    @cached_property
    def model(self) -> Model:
        """The model that the run made. Raises UserError where it made none, or several."""
        if "model" not in self._document:
            why = (
                "several models were made: read their folders in to_dict()"
                if len(self._document)
                else "nothing was run"
            )
            raise UserError("the result is not a single model", where=f"compress.{self.verb}", why=why)
        from compress.modelfolder.resolve import resolve

        return Model(resolve(self._document["model"]))

    @property
    def certificate(self) -> dict[str, Any] | None:
        """Of `fit`: what was measured of the model, on which machine, and whether the bounds are met."""
        return self.to_dict().get("certificate")

    def save(self, path: str | Path) -> Model:
        """The model as a folder at `path`, which must not exist."""
        return self.model.save(path)


def distill(
    teacher: ModelLike | Sequence[ModelLike] | None,
    data: Data | None = None,
    *,
    unlabelled: Data | Sequence[str] | None = None,
    student: Layers | Settings | ModelLike | None = None,
    objectives: Sequence[str | Settings] | None = None,
    output: Folder | None = None,
    recipe: Folder = "distilbert-task",
    training: Settings | None = None,
    control: bool = True,
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """Distil a teacher into a smaller student, and measure both: `compress distill`.

    teacher: one model, or a list of models that teach together; None with `teacher_column=`, columns of the data in
    which any model or annotators labelled the rows, and a model as `student`.  data: None with
    `recipe="text-distil", corpus=`, plain text alone.  unlabelled: text without labels, which
    the teacher labels: as `data`, or a list of texts.  student: how many layers of the teacher, evenly spaced; which
    layers, as a list; a rule such as "uniform:3", or "uniform" for half of them; a dictionary of the recipe's
    `student:`, such as `{"layers": [0, 2], "hidden": 192}`; or a model.  objectives: kinds such as "soft_targets", or
    rows of the recipe's `objectives:`.  control: also train the same student on hard labels alone.
    """
    if data is None and options.get("corpus") is None:
        do = "give data, or corpus= with a recipe that reads plain text alone, such as 'text-distil'"
        raise UserError("no rows and no text", where="compress.distill", do=do)
    told: dict[str, Any] = {**options, "control": control, "unlabelled": unlabelled}
    exact = _dictionary(set, "set", "{'stages.0.use_unlabelled': 'auto'}")
    stages = _places(recipe, "distill")
    if objectives is not None:
        if isinstance(objectives, str | Mapping):
            raise UserError("not a list", where="objectives", do="e.g. objectives=['soft_targets']")
        rows = [_objective(one, place) for place, one in enumerate(objectives)]
        exact = {f"stages.{place}.objectives": rows for place in stages} | exact
    if isinstance(student, Mapping):
        cut = {"count": None, **student} if "layers" in student else student
        made = {f"stages.{place}.student.{key}": value for place in stages for key, value in cut.items()}
        exact = made | exact
    elif _is_whole(student) and student > 0:
        told["layers"] = f"uniform:{student}"
    elif _is_layers(student):
        told["layers"] = student
    elif isinstance(student, int | float | list):
        raise UserError(f"{student!r} is neither layers nor a model", where="student", do=STUDENTS)
    elif student is not None:
        told["student"] = model_name(student, "student")  # type: ignore[arg-type]
    several = isinstance(teacher, list)
    if teacher is not None:
        named = [model_name(one, "teacher") for one in (teacher if several else [teacher])]  # type: ignore[list-item]
        told["teacher"] = named if several else named[0]
    return _run("distill", told, (), recipe, data, output, training, exact, quiet)


def finetune(
    model: ModelLike,
    data: Data,
    *,
    output: Folder | None = None,
    recipe: Folder = "finetune",
    training: Settings | None = None,
    new_head: bool = False,
    tune: str | None = None,
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """Fine-tune a model on labelled text: `compress finetune`. new_head: replace a task head that answers other labels
    by a new one.  tune: which parameters are trained: `all`, `lora`, `bitfit` or `last-2`; None: as the recipe
    says."""
    told = {**options, "model": model_name(model), "new_head": new_head, "tune": tune}
    return _run("finetune", told, (), recipe, data, output, training, set, quiet)


def pretrain(
    corpus: Folder,
    *,
    model: ModelLike | None = None,
    output: Folder | None = None,
    recipe: Folder | None = None,
    training: Settings | None = None,
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """Pretrain an encoder on plain text: `compress pretrain`. corpus: a file or folder of plain text, an embedded
    corpus, or hf:name.  model: a checkpoint to pretrain further; None: a new encoder with random weights.  recipe:
    None: `pretrain-further` with a model, else `teacher`."""
    told = {**options, "corpus": path_text(corpus, "corpus")}
    if model is not None:
        told["model"] = model_name(model)
    return _run("pretrain", told, (), recipe or PRETRAIN.recipe_for(told), None, output, training, set, quiet)


def tokenizer(
    corpus: Folder,
    *,
    output: Folder | None = None,
    recipe: Folder = "teacher",
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """Train a tokenizer on plain text: `compress tokenizer`. The result's folder holds it in `model`, where
    `transformers.AutoTokenizer` loads it. corpus: as of `pretrain`."""
    told = {**options, "corpus": path_text(corpus, "corpus")}
    return _run("tokenizer", told, (), recipe, None, output, None, set, quiet)


def prune_layers(
    model: ModelLike,
    data: Data,
    *,
    keep: int | Sequence[int] | None = None,
    drop: int | None = None,
    max_drop: float | None = None,
    target_latency: float | None = None,
    criterion: str | Sequence[str] | None = None,
    protect: Sequence[int] | None = None,
    recover: bool = True,
    output: Folder | None = None,
    recipe: Folder = "prune-layers",
    training: Settings | None = None,
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """Remove layers, then recover by distilling the model as it was: `compress prune-layers`.

    keep, drop: how many layers stay or go.  max_drop: as many go as cost at most so many points on validation.
    target_latency: in ms.  criterion: what chooses the layers; "all" or several compares them, at the depths in `keep`.
    protect: layers that stay, counted from 0.  recover: False cuts and measures alone.
    """
    told = {**options, "keep": keep, "drop": drop, "max_drop": max_drop, "target_latency": target_latency}
    told |= {"criterion": criterion, "protect": protect, "recover": recover}
    return _run("prune_layers", told, (model,), recipe, data, output, training, set, quiet)


def prune_width(
    model: ModelLike,
    data: Data,
    *,
    target_params: float | str | None = None,
    target_flops: float | str | None = None,
    target_latency: float | None = None,
    importance: str | None = None,
    recover: bool = True,
    output: Folder | None = None,
    recipe: Folder = "prune-width",
    training: Settings | None = None,
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """Remove heads, feed-forward neurons and channels, then recover: `compress prune-width`.

    target_params, target_flops: at most so many, as a number, "12M" or "50%".  target_latency: in ms.  importance: how
    heads and neurons are ranked.  recover: False cuts and measures alone.
    """
    told = {**options, "target_params": target_params, "target_flops": target_flops, "importance": importance}
    told |= {"target_latency": target_latency, "recover": recover}
    return _run("prune_width", told, (model,), recipe, data, output, training, set, quiet)


def prune_vocab(
    model: ModelLike,
    data: Data,
    *,
    coverage: float | None = None,
    min_count: int | None = None,
    size: int | None = None,
    corpus: Folder | None = None,
    output: Folder | None = None,
    recipe: Folder = "prune-vocab",
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """Cut the vocabulary to what a text needs, and rebuild the tokenizer, without training: `compress prune-vocab`.

    coverage: percent of the text that the tokens which stay make up.  min_count: how often a token occurs.  size: how
    many tokens stay.  corpus: text that tokens are counted in; None: the training rows of `data`.
    """
    told = {**options, "coverage": coverage, "min_count": min_count, "size": size}
    told["corpus"] = None if corpus is None else path_text(corpus, "corpus")
    return _run("prune_vocab", told, (model,), recipe, data, output, None, set, quiet)


def share(
    model: ModelLike,
    data: Data,
    *,
    groups: int | Sequence[Sequence[int]] | None = None,
    pattern: str | None = None,
    residual_rank: int | None = None,
    embedding_size: int | None = None,
    recover: bool = True,
    output: Folder | None = None,
    recipe: Folder = "share",
    training: Settings | None = None,
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """Cross-layer parameter sharing and factorized embeddings, then recovery training: `compress share`.

    groups: how many groups of neighbouring layers, or the groups: [[0, 1], [2, 3]].  pattern: which layers share.
    residual_rank: of what each layer adds to the shared matrices; 0: nothing.  embedding_size: width of the factorized
    embedding tables.  recover: False converts and measures alone.
    """
    told = {**options, "groups": groups, "pattern": pattern, "residual_rank": residual_rank}
    told |= {"embedding_size": embedding_size, "recover": recover}
    return _run("share", told, (model,), recipe, data, output, training, set, quiet)


def factorize(
    model: ModelLike,
    data: Data,
    *,
    rank: int | None = None,
    max_mb: float | None = None,
    method: str | None = None,
    allocation: str | None = None,
    recover: bool = True,
    output: Folder | None = None,
    recipe: Folder = "factorize",
    training: Settings | None = None,
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """Replace the layers' matrices by low-rank factors, then recover: `compress factorize`.

    rank: the same for every matrix.  max_mb: what the whole model may take in fp32.  method: how matrices are split.
    allocation: how ranks are chosen.  recover: False converts and measures alone.
    """
    told = {**options, "rank": rank, "max_mb": max_mb, "method": method, "allocation": allocation, "recover": recover}
    return _run("factorize", told, (model,), recipe, data, output, training, set, quiet)


def sparsify(
    model: ModelLike,
    data: Data,
    *,
    method: str | None = None,
    recover: bool = True,
    output: Folder | None = None,
    recipe: Folder = "sparsify",
    training: Settings | None = None,
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """Set two of every four weights to zero, then recover: `compress sparsify`. method: which weights."""
    told = {**options, "method": method, "recover": recover}
    return _run("sparsify", told, (model,), recipe, data, output, training, set, quiet)


def drop_tokens(
    model: ModelLike,
    data: Data,
    *,
    max_drop: float | None = None,
    confidence: float | None = None,
    keep_tokens: int | Sequence[int] | None = None,
    recover: bool = True,
    output: Folder | None = None,
    recipe: Folder = "drop-tokens",
    training: Settings | None = None,
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """Drop the least attended tokens between layers, then recover: `compress drop-tokens`.

    max_drop: points of accuracy that may be lost before recovery training; None: the recipe's.  confidence: percent, 50
    to 99.8, with which the loss on other texts is within that; None: the recipe's.  keep_tokens: percentage of the
    tokens that goes on after the first layer, or after each layer, in place of a search.
    """
    kept = ",".join(map(str, keep_tokens)) if isinstance(keep_tokens, Sequence) else keep_tokens
    told = {**options, "max_drop": max_drop, "confidence": confidence, "keep_tokens": kept, "recover": recover}
    return _run("drop_tokens", told, (model,), recipe, data, output, training, set, quiet)


def make_static(
    model: ModelLike,
    data: Data,
    *,
    dimensions: int | None = None,
    sif: float | None = None,
    recover: bool = True,
    output: Folder | None = None,
    recipe: Folder = "embed-static",
    training: Settings | None = None,
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """One vector for each token in place of an embedding model, then distillation: `compress make-static`.

    dimensions: of the vectors; None: 256.  sif: a of the weight a / (a + p) of a token with share p of the texts.
    """
    told = {**options, "dimensions": dimensions, "sif": sif, "recover": recover}
    return _run("make_static", told, (model,), recipe, data, output, training, set, quiet)


def reduce_dimensions(
    model: ModelLike,
    data: Data,
    *,
    dimensions: int | None = None,
    rows: int | None = None,
    recover: bool = True,
    output: Folder | None = None,
    recipe: Folder = "embed-matryoshka",
    training: Settings | None = None,
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """Vectors turned to their principal directions, then Matryoshka distillation: `compress reduce-dimensions`.

    dimensions: how many stay; None: all, ordered.  rows: most texts that the directions are fitted on.
    """
    told = {**options, "dimensions": dimensions, "rows": rows, "recover": recover}
    return _run("reduce_dimensions", told, (model,), recipe, data, output, training, set, quiet)


def quantize(
    model: ModelLike,
    data: Data,
    *,
    scheme: str | None = None,
    bits: int | None = None,
    mode: str | None = None,
    max_drop: float | None = None,
    float: str | Sequence[str] | None = None,
    onnx: bool | None = None,
    output: Folder | None = None,
    recipe: Folder | None = None,
    training: Settings | None = None,
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """Turn matrices, inputs and tables into integers: `compress quantize`.

    scheme: such as "per-token" or "static-mse".  bits: 8, 4, 3 or 2, in place of a scheme.  mode: "ptq", or "qat" with
    training.  max_drop: the most damaging modules fall back until it costs at most so many points on validation.
    float: patterns of modules that stay float.  onnx: write and measure the ONNX file; None: where the extra `onnx` is
    installed.
    """
    told = {**options, "scheme": scheme, "bits": bits, "mode": mode, "max_drop": max_drop, "float": float, "onnx": onnx}
    return _run("quantize", told, (model,), recipe, data, output, training, set, quiet)


def run(
    recipe: Folder,
    data: Data | None = None,
    *,
    model: ModelLike | None = None,
    teacher: ModelLike | None = None,
    output: Folder | None = None,
    training: Settings | None = None,
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """Run all stages of a recipe: `compress run`."""
    told = {**options}
    told |= {key: model_name(one, key) for key, one in (("model", model), ("teacher", teacher)) if one is not None}
    told |= _shared(data, output, _exact(recipe, training, set))
    return call_for(RunResult, "run", told, path_text(recipe, "recipe"), quiet=quiet)


def fit(
    model: ModelLike,
    data: Data,
    *,
    max_mb: float | None = None,
    max_ms: float | None = None,
    max_drop: float | None = None,
    train: str = "none",
    output: Folder | None = None,
    set: Settings | None = None,
    quiet: bool = False,
    **options: Any,
) -> RunResult:
    """Find the best model within a size or latency budget on this machine and certify it: `compress fit`.

    max_mb: megabytes (10^6 bytes) of the deployed file.  max_ms: median milliseconds of a batch.  max_drop: points of
    the main metric lost.  train: "none", "recover" or "full". Raises UserError where no model meets the bounds or the
    machine was too busy for a certificate; the error's `result` is then what this function returns otherwise, with the
    best model found. `uncertified=True` takes a model without a certificate.
    """
    told = {**options, "max_mb": max_mb, "max_ms": max_ms, "max_drop": max_drop, "train": train}
    return call_for(RunResult, "fit", _named_text(told) | _shared(data, output, set), model_name(model), quiet=quiet)


def compare(
    *models: ModelLike,
    data: Data | None = None,
    against: ModelLike | None = None,
    split: str = "test",
    quiet: bool = False,
    **options: Any,
) -> Result:
    """Many models in one table with their Pareto frontier: `compress compare`.

    models: models, which are measured on `data`, and runs of the MLflow store by name, id or folder; none: the
    experiment of the newest run.  against: a model that the others are compared with, row by row.
    """
    told: dict[str, Any] = {**options, "split": split}
    told |= {"data": None if data is None else data_name(data, split)}
    told |= {"against": None if against is None else model_name(against, "against")}
    return call_for(Result, "compare", told, *map(model_name, models), quiet=quiet)


# --- recipes --------------------------------------------------------------------------------------------------------


def _run(
    verb: str,
    told: Settings,
    model: Sequence[ModelLike],
    recipe: Folder | None,
    data: Data | None,
    output: Folder | None,
    training: Settings | None,
    exact: Settings | None,
    quiet: bool,
) -> RunResult:
    """Run the command `verb`. model: its argument.  exact: what `set` says."""
    named = {} if recipe is None else {"recipe": path_text(recipe, "recipe")}
    if training is not None and recipe is None:
        recipe = QUANTIZE.recipe_for(told) if verb == "quantize" else verb
    asked = {
        **_named_text(told),
        **named,
        **_shared(data, output, exact if recipe is None else _exact(recipe, training, exact)),
    }
    return call_for(RunResult, verb, asked, *map(model_name, model), quiet=quiet)


def _objective(given: str | Settings, place: int) -> Settings:
    """A row of `objectives:`."""
    if isinstance(given, str):
        return {"kind": given.replace("-", "_")}
    if not isinstance(given, Mapping):
        do = "give a kind such as 'soft_targets', or a dictionary such as {'kind': 'hard_labels', 'weight': 0.5}"
        raise UserError("neither a kind nor a dictionary", where=f"objectives: {place}", do=do)
    return dict(given)


def _named_text(told: Settings) -> dict[str, Any]:
    """The flags with a name for the text without labels that one of them may hold."""
    text = told.get("unlabelled")
    return {**told, "unlabelled": None if text is None else text_name(text)} if "unlabelled" in told else {**told}


def _shared(data: Data | None, output: Folder | None, exact: Settings | None) -> dict[str, Any]:
    named = {} if data is None else {"data": data_name(data)}
    return {**named, "output": None if output is None else path_text(output, "output"), "set": exact or None}


def _exact(recipe: Folder, training: Settings | None, exact: Settings | None) -> Settings:
    """`training` as values of the recipe's stages, then what `set` says, which is the more exact."""
    exact = _dictionary(exact, "set", "{'stages.0.training.steps': 100}")
    if training is None:
        return exact
    length = {"steps": {"epochs": None}, "epochs": {"steps": None}}
    values = _dictionary(training, "training", "{'steps': 100}")
    for key, other in length.items():
        if key in training:
            values = {**other, **values}
    stages = _stages(recipe)
    places = [place for place, stage in enumerate(stages) if hasattr(stage, "training")]
    if not places:
        raise UserError(f"recipe {recipe} has no training", where="training", do="remove it")
    made = {f"stages.{place}.training.{key}": value for place in places for key, value in values.items()}
    return {**made, **exact}


def _dictionary(given: Settings | None, name: str, example: str) -> dict[str, Any]:
    """A copy of a keyword's values by their names. Raises UserError for what is no dictionary."""
    if given is not None and not isinstance(given, Mapping):
        raise UserError("not a dictionary", where=name, do=f"e.g. {name}={example}")
    return dict(given or {})


def _places(recipe: Folder, kind: str) -> list[int]:
    return [place for place, stage in enumerate(_stages(recipe)) if stage.kind == kind]


def _stages(recipe: Folder) -> Sequence[Any]:
    from compress.recipe import load_recipe

    return load_recipe(path_text(recipe, "recipe")).stages


def _is_layers(student: object) -> bool:
    """Whether it names layers: a list of numbers, or a rule with a number or alone."""
    if isinstance(student, str):
        from compress.stages.distill.student_spec import LAYER_RULES

        rule, colon, count = student.partition(":")
        return rule in LAYER_RULES if not colon else rule.replace("-", "_").isidentifier() and count.strip().isdecimal()
    return isinstance(student, Sequence) and len(student) > 0 and all(map(_is_whole, student))


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
