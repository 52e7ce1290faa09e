"""Blocks of a recipe, and what the flags of a command say. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from compress.contracts.traits import Form, Rejection, Start
from compress.errors import format_count

T = TypeVar("T")
ListOf = Annotated[tuple[T, ...], Field(strict=False)]
"""A list in a recipe, a tuple in Python. (Everything else is strict: "3" is not a number, true is not 1.)"""


class Frozen(BaseModel):
    """A block of a recipe: immutable; unknown keys are rejected and values are not converted."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        """Found here rather than by `extra`, since only here the legal keys are at hand for the message."""
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    raise PydanticCustomError("unknown_key", "unknown key", {"key": key, "known": [*cls.model_fields]})
        return data


class StageSpec(Frozen):
    """One stage of a recipe, discriminated by `kind`, the name of its folder.

    A verb folder's `spec.py` holds a subclass `Spec` whose `kind` is a Literal; it must not import torch.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"data"})
    """Blocks of the recipe without which no stage of this kind can work."""

    milestone: ClassVar[str | None] = None
    """What its model is called where it is measured beside the result of a later stage; None: it is not measured."""

    trained: ClassVar[str | None] = None
    """What a model is called that a later stage trained on from this one's; None: as its run is."""

    makes: ClassVar[Literal["model", "tokenizer"]] = "model"

    compresses: ClassVar[bool] = True
    """Whether its model is a smaller one of the model before it; False: it makes one that others compress."""

    for_task: ClassVar[bool] = True
    """Whether its model may answer the task: see `answers_task`."""

    pretrains: ClassVar[bool] = False
    """Whether its model has a masked-LM head, and so can teach on a corpus."""

    learns: ClassVar[bool] = False
    """Whether it is taught: by the recipe's teacher, or by another model of the chain. The others read a teacher only
    in place of a model that they are not given."""

    embeds: ClassVar[bool] = False
    """Whether it works on a model whose task is the vector of a text."""

    own_pooling: ClassVar[bool] = False
    """Whether it decides how its model turns texts into vectors; else that is carried over from its parent's folder."""

    reads_teacher: ClassVar[bool] = False
    """Whether its result depends on the teacher even where it is given a model."""

    timed: ClassVar[bool] = False
    """Whether its result depends on `evaluation.latency`."""

    timed_by: ClassVar[tuple[str, ...]] = ()
    """Keys that make its result depend on how fast this machine is, where they are set."""

    changes_vocabulary: ClassVar[bool] = False
    """Whether tokens go, which no training brings back."""

    closes: ClassVar[str | None] = None
    """Why no stage can come after it; None: one can."""

    writes_onnx: ClassVar[bool] = False
    """Whether its model is an ONNX file, and measured as one."""

    result_name: ClassVar[str] = "model"
    """The folder of its model in the run's folder, where it is the last stage."""

    task_recipe: ClassVar[str | None] = None
    """A shipped recipe that does the like without a general teacher."""

    forms: ClassVar[tuple[Form, ...]] = ()
    """What it makes of its model: see `makes_forms`."""

    rejected: ClassVar[tuple[Rejection, ...]] = ()
    """What it cannot work on, the first reason first: see `rejects`."""

    kind: Any  # each kind narrows it to its own Literal

    def needs(self) -> frozenset[str]:
        """Blocks of the recipe that this very row reads: they must be there, and its result depends on them."""
        return self.reads

    def keeps_labels(self) -> bool:
        """Whether its model answers the labels of the model before it, if that answers any, in its order."""
        return self.compresses

    def makes_forms(self) -> tuple[Form, ...]:
        """What this very row makes of its model, beside what the model was before."""
        return self.forms

    def rejects(self) -> tuple[Rejection, ...]:
        """What this very row cannot work on, the first reason first."""
        return self.rejected

    def starts_from(self) -> Start:
        """What its model starts from."""
        return "input"

    def checkpoint(self) -> str | None:
        """The model that the row names itself and starts from; None: there is none."""
        return None

    def checkpoints(self) -> tuple[str, ...]:
        """All models that the row names itself, in a fixed order."""
        return ()

    def reads_unlabelled(self) -> bool:
        """Whether it may train on rows without labels."""
        return False

    def vector_objective(self) -> str | None:
        """The kind of the first objective that compares sentence embeddings; None: there is none."""
        return None

    def turns_vectors(self) -> bool:
        """Whether its sentence embeddings have other axes than its parent's: cosines between the two mean nothing."""
        return False

    def answers_task(self) -> bool:
        """Whether its model may answer the task: one made from text alone does not, whatever head it has."""
        return self.for_task and getattr(self, "level", "task_specific") == "task_specific"

    def trains(self) -> bool:
        """Whether it takes optimizer steps."""
        return "training" in type(self).model_fields

    def shares_work(self) -> bool:
        """Whether it computes something before its first step that several workers can share."""
        return False

    def depends_on_machine(self) -> bool:
        """Whether its result depends on how fast this machine is."""
        return any(getattr(self, key) for key in self.timed_by)


class PartRow(Frozen):
    """One part of a stage: `kind` is a file of a folder of parts, the other keys its constructor's keywords."""

    kind: str

    def options(self) -> dict[str, Any]:
        """The keywords for the constructor."""
        return {name: getattr(self, name) for name in type(self).model_fields if name not in ("kind", "weight")}


class ObjectiveRow(PartRow):
    """One objective of a stage: a file of compress/objectives, and its weight among the others."""

    weight: float = Field(default=1.0, ge=0)
    """Weight of this objective in the total loss."""


@dataclass(frozen=True)
class Override:
    """A value that replaces one of the recipe's. origin: what an error blames, e.g. `--seed 1.5`.

    path: keys and list positions joined by dots; `*` stands for every item of a list.
    required: whether a path that leads nowhere is an error.
    """

    path: str
    value: Any
    origin: str
    required: bool = True

    @property
    def is_set(self) -> bool:
        """Whether --set gave it, and not a flag of its own."""
        return self.origin.startswith("--set ")


def list_set_values(overrides: Sequence[Override]) -> dict[str, Any]:
    """Path → value of what --set changed, as parameters of a tracked run. Flags are found in it by other names."""
    return {one.path: one.value for one in overrides if one.is_set and one.path != "sweep"}


@dataclass(frozen=True)
class ChainOptions:
    """How `compress run` goes through the stages of a recipe.

    until: the last one that runs; begin: the first one that is made anew, those before it having been made already;
    both as a person names a stage, None: not asked for.  cached: whether a stage that an earlier run made of the same
    input in the same way is taken from there.
    """

    until: str | None = None
    begin: str | None = None
    cached: bool = True


@dataclass(frozen=True)
class RunOptions:
    """What a person asked for on the command line, beside the recipe's own values.

    recipe: a name or a path, None when the command has its own default.  overrides: in the order given; they hold
    --set and every flag that is a recipe value (--seed, --data, --teacher ...).  device: "cpu" or "cuda", present.
    threads: of the CPU; "auto": of training, one or all, whichever is faster; None: torch's number.
    runtime: what computes a finished model's answers; None: as its folder is meant to be run.  onnx: whether quantized
    results get their file; None: where it can be written.  push: the hub repository that the model is uploaded to, as
    org/name.  chain: of a run of all stages, each of them measured; None: of other commands.  print_recipe: the
    resolved recipe is printed and nothing runs.  workers: processes that make several runs at once; "auto": one for
    each CPU; None: this process makes them one after the other.  on: the cluster that makes them; None: this machine.
    """

    recipe: str | None = None
    overrides: tuple[Override, ...] = ()
    device: str = "cpu"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    runtime: Literal[
        "torch", "torch-int8", "torch-sparse", "torch-graph", "torch-compile", "torchao-int8", "torchao-fp8",
        "onnxruntime", "openvino", "onnxruntime-cuda", "onnxruntime-tensorrt", "auto",
    ] | None = None  # fmt: skip
    onnx: bool | None = None
    threads: int | Literal["auto"] | None = None
    output: Path | None = None
    resume: bool = False
    dry_run: bool = False
    print_recipe: bool = False
    json: bool = False
    quiet: bool = False
    debug: bool = False
    tracking_uri: str | None = None
    experiment: str | None = None
    push: str | None = None
    push_private: bool = False
    chain: ChainOptions | None = None
    workers: int | Literal["auto"] | None = None
    on: str | None = None


MOST = 10**12
"""Of steps, rows and tokens: far above what anybody trains, far below what overflows."""


class TrainingPlan(Frozen):
    """How long and how to train: the `training:` block of every stage, and what the loop is given."""

    epochs: float | None = Field(default=None, gt=0, le=10_000)
    """Passes over the training data. Default: neither this nor `steps`: training ends when the validation metric stops
    rising."""
    steps: int | None = Field(default=None, gt=0, le=MOST)
    """Number of optimizer steps. Set this, or `epochs`, or neither."""
    min_steps: int | None = Field(default=None, gt=0, le=MOST)
    """Without `epochs` and `steps`: minimum number of optimizer steps. Default: by the size of the training data."""
    max_steps: int | None = Field(default=None, gt=0, le=MOST)
    """Without `epochs` and `steps`: maximum number of optimizer steps. Default: by the size of the training data."""
    minutes: float | None = Field(default=None, gt=0, le=10**6)
    """Time limit in minutes. A few steps and a validation are timed before step 1, and training takes no more steps
    than fit; resumed runs keep this number of steps. Default: no limit."""
    batch_rows: int = Field(default=32, gt=0, le=MOST)
    """Sequences per optimizer step."""
    max_tokens: int = Field(default=8192, gt=0, le=MOST)
    """Maximum number of tokens (without padding) in one micro-batch. A larger step is split with exact gradient
    accumulation."""
    learning_rate: float | None = Field(default=None, gt=0, lt=1)
    """Peak learning rate, reached after the warm-up. Default (null or auto): by the hidden size of the encoder."""
    optimizer: Literal["adamw", "lamb"] = "adamw"
    """adamw: arXiv 1711.05101.  lamb: the update of each matrix scales with its norm (arXiv 1904.00962), for large
    batches."""
    betas: Annotated[tuple[float, float], Field(strict=False)] = (0.9, 0.999)
    """Optimizer betas: decay rates of the first and second moments of the gradient."""
    eps: float = Field(default=1e-8, gt=0)
    """Optimizer epsilon, added to the denominator."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Weight decay; not applied to biases and norms."""
    warmup: float = Field(default=0.1, ge=0, lt=1)
    """Fraction of the steps in which the learning rate rises linearly; without `epochs` and `steps`, of the minimum
    number of steps."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Learning-rate schedule after the warm-up. Without `epochs` and `steps` the rate is constant at first, and follows
    this schedule down to 0 once the validation metric has stopped rising."""
    clip_norm: float | None = Field(default=1.0, gt=0)
    """Maximum norm of the whole gradient. null: no clipping."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of the matrix products; weights and optimizer states stay fp32. auto: bf16 if the device supports it,
    else fp32."""
    cuda_graphs: Literal["auto"] | bool = "auto"
    """On a GPU, replay whole steps as CUDA graphs: for small batches, whose kernels take the host longer to launch than
    the GPU to compute. Only steps of one micro-batch are replayed; rows of mixed lengths are padded to a few sizes for
    it, if all objectives support padding. auto: bf16 steps up to 8,192 tokens, unless a loss relates all tokens of
    a row (`attention_maps`, `minilm`, `minilmv2`). true: all steps, with one line that reports why if it is
    impossible."""
    threads: Literal["auto"] | None = None
    """auto: measure a few steps with one CPU thread and with all, and keep the faster. Default: all. `--threads` takes
    precedence."""
    validate_every: int | None = Field(default=None, gt=0, le=MOST)
    """Steps between validations. Default: at the end of every epoch, but about 20 times at most; without `epochs`
    and `steps`, after a number of steps that grows with the steps done."""
    validate_start: bool = False
    """Also validate before the first step, so that training from good weights cannot return worse ones."""
    keep_best: bool = True
    """Return the weights of the best validation instead of the last ones. Of validations with an equal score: those
    with the lowest validation loss, else the latest."""
    checkpoint_every: int = Field(default=500, gt=0, le=MOST)
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(default=2, gt=0, le=MOST)
    """Number of most recent checkpoints to keep until the stage is complete."""
    log_every: int = Field(default=10, gt=0, le=MOST)
    """Steps between logged points of the training curves."""
    max_bad_steps: int = Field(default=3, ge=0, le=MOST)
    """Maximum number of steps with a non-finite loss or gradient to skip; the run stops at the next one."""

    @field_validator("learning_rate", mode="before")
    @classmethod
    def _auto(cls, rate: Any) -> Any:
        """`auto` is another way to write null."""
        return None if rate == "auto" else rate

    @model_validator(mode="after")
    def _one_length(self) -> TrainingPlan:
        if self.epochs is not None and self.steps is not None:
            raise ValueError(
                "epochs and steps both set the length of training; remove one, or set an inherited one to null"
            )
        if self.min_steps is not None and self.max_steps is not None and self.min_steps > self.max_steps:
            raise ValueError(f"min_steps {self.min_steps:,} is more than max_steps {self.max_steps:,}")
        return self

    @model_serializer(mode="wrap")
    def _without_unset_keys(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """These keys are newer than many a recipe: hashes of those without them stay as they were."""
        newer = {"min_steps": None, "max_steps": None, "minutes": None, "threads": None, "cuda_graphs": "auto"}
        return {k: v for k, v in handler(self).items() if k not in newer or v != newer[k]}

    @property
    def is_automatic(self) -> bool:
        """Whether training ends when the validation metric stops rising."""
        return self.epochs is None and self.steps is None

    @property
    def length(self) -> str:
        """`500 steps`, `3 epochs` or `automatic length`, for people."""
        if self.is_automatic:
            return "automatic length"
        if self.steps:
            return format_count(self.steps, "step")
        return f"{self.epochs:g} epoch{'' if self.epochs == 1 else 's'}"

    @property
    def rate(self) -> float:
        """The peak learning rate of a plan in which it is known."""
        assert self.learning_rate is not None
        return self.learning_rate


class MaskingSpec(Frozen):
    """Which tokens masked language modelling masks: the `masking:` block of the stages that read a corpus."""

    strategy: Literal["dynamic", "static", "distilbert"] = "dynamic"
    """dynamic: new masks every epoch.  static: the same masks every epoch.  distilbert: drawn over the whole batch,
    rare tokens more often."""
    whole_word: bool = False
    """Mask all tokens of a chosen word (whole-word masking)."""
    ngrams: int = Field(default=1, ge=1, le=16)
    """Maximum length, in words, of the n-grams that are masked together, with probability proportional to 1/n (ALBERT,
    arXiv 1909.11942, uses 3). Needs `whole_word`."""
    word_list: str | None = Field(default=None, min_length=1)
    """Word list for text without spaces: a file with one word per line; the longest match is a word. Needs
    `whole_word`."""
    segmenter: str | None = Field(default=None, min_length=1)
    """Your own function that splits a text into words, as `module:function`, such as jieba:lcut. Needs `whole_word`."""
    probability: float = Field(default=0.15, gt=0, lt=1)
    """Fraction of the tokens that are chosen for prediction."""
    mask: float = Field(default=0.8, ge=0, le=1)
    """Fraction of the chosen tokens that are replaced by [MASK]."""
    random: float = Field(default=0.1, ge=0, le=1)
    """Fraction of the chosen tokens that are replaced by a random token."""
    keep: float = Field(default=0.1, ge=0, le=1)
    """Fraction of the chosen tokens that stay unchanged."""

    @model_validator(mode="after")
    def _shares(self) -> MaskingSpec:
        if abs(self.mask + self.random + self.keep - 1) > 1e-6:
            raise ValueError(f"mask + random + keep is {self.mask + self.random + self.keep:g}, the sum must be 1")
        if self.whole_word and self.strategy == "distilbert":
            raise ValueError("strategy distilbert masks single tokens, not whole words; set whole_word to false")
        if self.ngrams > 1 and not self.whole_word:
            raise ValueError("ngrams has no effect without whole_word; set whole_word to true")
        given = [name for name in ("word_list", "segmenter") if getattr(self, name) is not None]
        if len(given) == 2:
            raise ValueError("word_list and segmenter both define the words; remove one of them")
        if given and not self.whole_word:
            raise ValueError(f"{given[0]} has no effect without whole_word; set whole_word to true")
        return self

    def check_noise(self, noise: NoiseSpec | None) -> None:
        """Raise ValueError for typo noise together with static masking."""
        if noise is not None and self.strategy == "static":
            raise ValueError(
                "typo noise changes the tokens every epoch, so masks cannot be static; remove noise, or set "
                "strategy to dynamic"
            )


NOISE_KINDS = ("swap", "drop", "insert", "keyboard")


class NoiseSpec(Frozen):
    """Typo noise in the training text, different in every epoch: the `noise:` block of a stage."""

    kinds: Annotated[ListOf[Literal["swap", "drop", "insert", "keyboard"]], Field(min_length=1)] = NOISE_KINDS
    """swap: two neighbouring characters change places.  drop: a character is left out.  insert: a character is added.
    keyboard: a neighbouring key is hit."""
    rate: float = Field(default=0.05, ge=0, le=1)
    """Fraction of the letters and digits that get a typo."""

    @field_validator("kinds")
    @classmethod
    def _once(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise ValueError(f"{kind} is listed twice; remove one")
        return kinds
