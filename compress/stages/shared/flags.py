"""The flags of a command that changes a model, as data: which recipe key each sets, and what its help says.

Each stage lists its own in `compress/stages/<kind>/flags.py`; `compress/cli/_flags.py` makes click's options and the
overrides of the recipe from them. Read by `--help`: imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from compress import registry
from compress.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from compress.recipe import Recipe

Given = Mapping[str, Any]
"""Flags by name, such as `residual_rank` → their values; None: not given."""
Group = Literal["input", "method", "training", "output", "other"]
Kind = Literal["text", "int", "float", "switch", "ms", "duration", "amount", "folder", "model"]


class Keys(dict[str, Any]):
    """What a flag that sets several keys of the stage is converted to: path → value."""


@dataclass(frozen=True)
class Flag:
    """One flag.

    path: the key of the stage that it sets, dotted; empty: the table's `edits`, or the command, reads it.
    kind: what is typed; amount: 12M, 1.5G or 50%; duration: 90s, 10m or 2h, seconds.  low, high: bounds of an int.
    convert: the value, and the flag's name for messages → the value in the recipe, or `Keys`. Raises UserError.
    constant: what a switch writes.  family: flags that say the same thing in several ways; see `Family`.
    within: only stages that have the block of the path are changed, of any kind; False: the block is made.
    alias: a second name.  known: the names that it takes, which the help lists and the shell completes; None: any text.
    several: takes a list of them with commas between.
    """

    name: str
    path: str
    help: str
    group: Group = "method"
    kind: Kind = "text"
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    low: int | None = None
    high: int | None = None
    multiple: bool = False
    convert: Callable[[Any, str], Any] | None = None
    constant: Any = True
    family: str = ""
    within: bool = False
    alias: str = ""
    known: Callable[[], Sequence[str]] | None = None
    several: bool = False

    @property
    def text(self) -> str:
        """Its help, with the names that it takes."""
        return self.help if self.known is None else f"{self.help} Values: {', '.join(self.known())}."

    def shown(self, value: Any) -> str:
        """A value of the recipe as it would be typed; empty for one that no line shows."""
        if isinstance(value, Mapping) and self.known is not None:
            value = str(value.get("kind", "")).replace("_", "-")
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return ""
        value = complement(value, self.name) if self.convert is complement and not isinstance(value, str) else value
        return f"{value:g}" if isinstance(value, float) else str(value)

    def check(self, value: Any) -> None:
        """Raises UserError for a value that cannot be meant, as far as the value alone says so."""
        if self.convert is None or self.kind == "switch":
            return
        known = () if self.known is None else self.known()
        for one in [part.strip() for part in value.split(",")] if self.several else [value]:
            if one not in known:
                self.convert(one, self.name)

    @property
    def key(self) -> str:
        """The name in `Given`."""
        return self.name.removeprefix("--").replace("-", "_")

    def origin(self, value: Any) -> str:
        """What an error in the recipe blames."""
        if self.kind == "switch":
            return self.name
        if self.kind == "duration":
            return f"{self.name} {value:g}s"
        return f"{self.name} {value:g}" if isinstance(value, float) else f"{self.name} {value}"


@dataclass(frozen=True)
class Family:
    """Flags that replace what the recipe says with any of `keys`; why: only one may be given, and the reason."""

    keys: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Edit:
    """A value to put into the recipe. path: from its root.  origin: the flag that an error blames."""

    path: str
    value: Any
    origin: str


@dataclass(frozen=True)
class Table:
    """All flags of one command.

    kind: the stage whose keys they set, the first of this kind in the recipe; empty: no stage's.
    every: all of this kind instead.
    recipe: used where --recipe names none; empty: the command has no default.
    chosen: values of the command line, by name → the recipe used for them, where it is not always the same.
    edits: recipe without --set, place of the stage, flags → what one row of the table cannot say. Raises UserError.
    again: recipe with all flags and --set, place, flags → edits that repeat its stages. Raises UserError.
    check: recipe as it will run, place, flags: raises UserError for flags that have no effect there.
    demo: whether the command requires a model or data, and has --demo.
    """

    kind: str
    recipe: str
    flags: tuple[Flag, ...]
    families: Mapping[str, Family] = field(default_factory=dict)
    edits: Callable[[Recipe, int, Given], Iterable[Edit]] | None = None
    again: Callable[[Recipe, int, Given], Iterable[Edit]] | None = None
    check: Callable[[Recipe, int, Given], None] | None = None
    every: bool = False
    demo: bool = True
    chosen: Callable[[Mapping[str, Any]], str] | None = None

    def recipe_for(self, values: Mapping[str, Any]) -> str:
        """The recipe used for these values of the command line where --recipe names none."""
        return self.recipe if self.chosen is None else self.chosen(values)

    def none_given(self) -> dict[str, Any]:
        """Every flag, none of them given."""
        return {flag.key: () if flag.multiple else False if flag.kind == "switch" else None for flag in self.all_flags}

    @property
    def all_flags(self) -> tuple[Flag, ...]:
        """Its own flags, and --demo."""
        return (*self.flags, DEMO) if self.demo else self.flags


DEMO = Flag(
    "--demo", "", "Try it on built-in data, and without a model on a teacher that is trained on that data first.",
    "input", "switch",
)  # fmt: skip
"""A flag of every table."""
GENERAL_TEACHER = Flag(
    "--general-teacher", "", "Pretrained encoder that the teacher was fine-tuned from, for recipes that train on a "
    "corpus. Some objectives need its masked-LM head.", "input", "folder", "FOLDER",
)  # fmt: skip
SEEDS = Flag(
    "--seeds", "", "Repeat the run with N seeds; report mean and spread.", "training", "int", "N", low=2, high=100
)
TRAINING = (
    Flag("--epochs", "",
         "Passes over the training data. Default: the recipe's length, else until validation stops improving.",
         "training", "float", "N"),
    Flag("--steps", "", "Optimizer steps of each stage that trains. Default: as for --epochs.", "training", "int", "N"),
    Flag("--time", "", "Time limit of each stage's training, such as 10m: as many steps as fit (default: none).",
         "training", "duration"),
    Flag("--learning-rate", "", "Peak learning rate. Default: the recipe's, else by the hidden size.", "training",
         "float", "RATE", alias="--lr"),
    Flag("--batch-size", "", "Sequences per optimizer step.", "training", "int", "N"),
)  # fmt: skip
"""Flags of every command that trains: they change the `training:` block of all stages that train and run."""
TEMPERATURE = Flag(
    "--temperature", "", "Temperature of the distillation objectives; higher: softer teacher probabilities.",
    "training", "float", "T",
)  # fmt: skip
AUGMENTATION = (
    Flag("--augment", "", "Data augmentation: copies of the training texts that the teacher labels. masked-lm, "
         "neighbours: with words replaced; mix: with spans of other training texts; auto: mix, if there are at most "
         "5,000 training rows and no text without labels.",
         choices=("auto", "none", "masked-lm", "neighbours", "mix")),
    Flag("--augment-model", "", "Pretrained encoder that proposes the words of --augment.", kind="model"),
    Flag("--augment-copies", "", "Copies of each text with --augment (default: 5).", kind="int", low=1, high=100),
)  # fmt: skip
"""Flags of every command that distils: they change the `augmentation:` block of the stages that do so on the task."""
AUGMENTATION_KEYS = {"augment": "method", "augment_model": "model", "augment_copies": "copies"}
"""Flag of `AUGMENTATION` → its key in an `augmentation:` block."""
RECOVERY = (*TRAINING, TEMPERATURE, *AUGMENTATION)
"""Flags of every command that distils, or whose recovery training does."""
TRAINING_KEYS = {
    "epochs": "epochs",
    "steps": "steps",
    "time": "minutes",
    "learning_rate": "learning_rate",
    "batch_size": "batch_rows",
}
"""Flag of `TRAINING` → its key in a `training:` block."""
NO_RECOVER = Flag("--no-recover", "", "Skip recovery training: convert and measure only.", "training", "switch")


def is_given(value: Any) -> bool:
    """Whether a flag was given; 0 is a value."""
    return value is not None and value is not False and value != ()


# --- converters -------------------------------------------------------------------------------------------------


def part(package: str, more: Sequence[str] = ()) -> Callable[[Any, str], Any]:
    """The recipe row of a part by its name. more: other values that the flag takes, for the message."""
    return lambda name, flag: {"kind": part_kind(package, name, flag, more)}


def part_names(package: str, more: Sequence[str] = ()) -> Callable[[], Sequence[str]]:
    """The names of the parts of a package as they are typed, and other values of the flag."""
    return lambda: (*(kind.replace("_", "-") for kind in registry.parts(package)), *more)


def part_kind(package: str, name: str, flag: str, more: Sequence[str] = ()) -> str:
    """The file of a part that may be written with dashes. Raises UserError."""
    from compress.recipe import current_kind

    known = registry.parts(package)
    kind = current_kind(package, name.replace("-", "_"), flag)
    if kind not in known:
        names = [one.replace("_", "-") for one in known]
        what = registry.noun(package)
        raise UserError(f"unknown {what} '{name}'", where=flag, do=did_you_mean(name, [*names, *more]))
    return kind


def numbers(example: str) -> Callable[[Any, str], Any]:
    """`0,5` → [0, 5]."""
    return lambda text, flag: list(parse_numbers(text, flag, example))


def number_or_list(example: str) -> Callable[[Any, str], Any]:
    """`6` → 6, for all layers; `6,4` → [6, 4], one number a layer."""

    def convert(text: str, flag: str) -> int | list[int]:
        found = parse_numbers(text, flag, example)
        return found[0] if len(found) == 1 else list(found)

    return convert


def parse_numbers(text: str, flag: str, example: str) -> tuple[int, ...]:
    """`0,5` → (0, 5). Raises UserError."""
    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError:
        raise UserError("not a list of whole numbers", where=f"{flag} {text}", do=f"e.g. {flag} {example}") from None


def above_zero(value: float, flag: str) -> float:
    """Raises UserError for a number up to 0."""
    if value <= 0:
        raise UserError(f"{value:g} is not possible", where=flag, do="give a number above 0")
    return value


def share(value: float, flag: str) -> float:
    """Raises UserError for a number that is not between 0 and 1."""
    if not 0 < value < 1:
        raise UserError(f"{value:g} is not possible", where=flag, do="give a share between 0 and 1, e.g. 0.5")
    return value


def complement(value: float, flag: str) -> float:
    """The share that goes, of the share that stays. Raises UserError."""
    return round(1 - share(value, flag), 12)


# --- recipes ----------------------------------------------------------------------------------------------------


def require_recovery(given: Given, flag: str, why: str) -> None:
    """Raises UserError for a flag that needs recovery training beside --no-recover."""
    if given.get("no_recover"):
        raise UserError(why, where=flag, do=f"remove --no-recover, or {flag}")


def running(table: Table, rows: Sequence[Mapping[str, Any]], given: Given) -> dict[int, Mapping[str, Any]]:
    """The stages that run and train, by their places. rows: all stages, not validated."""
    only = table.every or given.get("no_recover") or given.get("mode") == "ptq"
    return {
        place: row
        for place, row in enumerate(rows)
        if "training" in row and (not only or row.get("kind") == table.kind)
    }


def training_edits(table: Table, name: str, rows: Sequence[Mapping[str, Any]], given: Given) -> Iterator[Edit]:
    """What the flags of `RECOVERY` change. name, rows: the recipe and its stages, not validated. Raises UserError for
    flags that have no effect."""
    said = {flag: given[flag.key] for flag in table.flags if flag in RECOVERY and is_given(given.get(flag.key))}
    if not said:
        return
    first = next(iter(said)).name
    if is_given(given.get("epochs")) and is_given(given.get("steps")):
        raise UserError("--epochs and --steps together", why="each sets the length of training", do="give one of them")
    stages = running(table, rows, given)
    if not stages and given.get("no_recover"):
        raise UserError("nothing is trained with --no-recover", where=first, do=f"remove --no-recover, or {first}")
    if not stages:
        do = "use --mode qat" if table.kind == "quantize" else "use a recipe that trains"
        raise UserError(f"recipe {name} trains nothing", where=first, do=f"{do}, or remove {first}")
    for flag, value in said.items():
        origin = flag.origin(value)
        if flag is TEMPERATURE:
            yield from _temperature(name, stages, value, origin)
        elif flag in AUGMENTATION:
            yield from _augmentation(name, stages, flag, value, given)
        else:
            key, value = TRAINING_KEYS[flag.key], value / 60 if flag.kind == "duration" else value
            for place in stages:
                if key in ("epochs", "steps"):
                    yield Edit(f"stages.{place}.training.{'steps' if key == 'epochs' else 'epochs'}", None, origin)
                yield Edit(f"stages.{place}.training.{key}", value, origin)


def _augmentation(
    name: str, stages: Mapping[int, Mapping[str, Any]], flag: Flag, value: Any, given: Given
) -> Iterator[Edit]:
    origin = flag.origin(value)
    found = [place for place, row in stages.items() if row.get("kind") == "distill" and not is_on_corpus(row)]
    if not found:
        raise UserError(
            f"recipe {name} distils nothing on the task", where=origin,
            do=f"use a recipe that does, or remove {flag.name}",
        )  # fmt: skip
    for place in found:
        method = given.get("augment") or (stages[place].get("augmentation") or {}).get("method")
        if flag.key == "augment_model" and method in ("auto", "none", "mix"):
            do = "add --augment masked-lm or --augment neighbours"
            raise UserError(f"--augment {method} does not use a model", where=origin, do=do)
        if flag.key == "augment_copies" and method is None and not given.get("augment_model"):
            raise UserError(f"recipe {name} makes no copies", where=origin, do="add --augment mix")
        yield Edit(f"stages.{place}.augmentation.{AUGMENTATION_KEYS[flag.key]}", value, origin)


def _temperature(name: str, stages: Mapping[int, Mapping[str, Any]], value: float, origin: str) -> Iterator[Edit]:
    found = [
        f"stages.{place}.objectives.{at}.temperature"
        for place, row in stages.items()
        for at, objective in enumerate(row.get("objectives") or ())
        if _is_softened(objective)
    ]
    if not found:
        do = "use a recipe with a soft_targets objective, or remove --temperature"
        raise UserError(f"recipe {name} has no objective with a temperature", where=origin, do=do)
    yield from (Edit(path, value, origin) for path in found)


def _is_softened(objective: Mapping[str, Any]) -> bool:
    kind = objective.get("kind")
    if kind not in registry.parts("compress.objectives") or not registry.load("compress.objectives", kind).softens:
        return False
    return "temperature" in registry.schema("compress.objectives", kind).model_fields


def length_edits(
    table: Table, content: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], given: Given, value: int
) -> Iterator[Edit]:
    """What --max-length changes where a stage trains on the corpus. content, rows: the recipe, not validated."""
    origin = f"--max-length {value}"
    read = {p: r for p, r in running(table, rows, given).items() if is_on_corpus(r)}
    if read and content.get("corpus") is not None:
        yield Edit("corpus.max_length", value, origin)
        for place, row in read.items():
            if row.get("block_length") is not None:
                yield Edit(f"stages.{place}.block_length", value, origin)


def is_on_corpus(row: Mapping[str, Any]) -> bool:
    """Whether a stage that trains, not validated, reads the corpus."""
    return row.get("kind") == "pretrain" or row.get("level") == "general"


def repeatable(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Stages to repeat: where nothing else is said, the recipe's teacher teaches all of them, since a model that was
    cut and recovered before is a worse one."""
    return [{**row, "taught_by": row["taught_by"] or "teacher"} if "taught_by" in row else {**row} for row in rows]
