"""Which stages of a recipe a command runs, and what they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from compress.contracts import ChainOptions, StageSpec
from compress.errors import UserError
from compress.recipe import Recipe
from compress.run import chain


@dataclass(frozen=True)
class Selection:
    """The stages of a recipe that run.

    indices: their places in the recipe.  begin: the stage from which on all are made anew; None: no `--from` was given.
    whole: whether the last of them is the last that the command is about.  chain: how `compress run` goes through them;
    None: the options of another command.
    """

    recipe: Recipe
    indices: Sequence[int]
    begin: int | None
    whole: bool
    chain: ChainOptions | None = None

    @classmethod
    def of(cls, recipe: Recipe, verb: str | None, options: ChainOptions | None) -> Selection:
        """The stages of one kind (verb), or all, up to `--until`. Raises UserError where none is left."""
        places = [i for i, s in enumerate(recipe.stages) if verb is None or s.kind == verb]
        if not places:
            kinds = ", ".join(dict.fromkeys(s.kind for s in recipe.stages))
            raise UserError(f"recipe {recipe.name} has no {verb} stage", why=f"its stages: {kinds}")
        begin, indices = select_requested_stages(recipe, places, options)
        return cls(recipe, tuple(indices), begin, indices[-1] == places[-1], options)

    def stage(self, index: int) -> StageSpec:
        """The stage at a place in the recipe."""
        return self.recipe.stages[index]

    @property
    def first(self) -> StageSpec:
        """The first stage that runs."""
        return self.stage(self.indices[0])

    @property
    def last(self) -> StageSpec:
        """The last stage that runs."""
        return self.stage(self.indices[-1])

    @property
    def needs(self) -> frozenset[str]:
        """Blocks of the recipe that are read; "teacher" only where one is read that the recipe names."""
        read = self._read()
        return read if chain.asks_teacher(self.recipe, self.indices) else read - {"teacher"}

    @property
    def compresses(self) -> bool:
        """Whether a model is made smaller, whoever teaches."""
        return "teacher" in self._read()

    def _read(self) -> frozenset[str]:
        return frozenset[str]().union(*(self.stage(i).needs() for i in self.indices))

    @property
    def reference(self) -> Literal["teacher", "parent"]:
        """What the model is called that the result is compared with: the teacher where a stage is taught by it."""
        return "teacher" if any(self.stage(i).learns for i in self.indices) else "parent"

    @property
    def method(self) -> str:
        """What the run is called in the store."""
        return self.recipe.method or self.last.kind

    @property
    def selects_best(self) -> bool:
        """Whether the run leaves the best of its models, in place of the last one."""
        return self.whole and getattr(self.last, "select", "student") == "best"

    @property
    def trains(self) -> bool:
        """Whether a stage that runs takes optimizer steps."""
        return any(self.stage(i).trains() for i in self.indices)

    @property
    def caution(self) -> str | None:
        """What is noted of an experimental recipe. What it expects of its models, it expects after training."""
        if not self.recipe.experimental:
            return None
        tells = self.trains and isinstance(self.recipe.expected, str)
        return f"recipe {self.recipe.name} is experimental" + (f"; expected: {self.recipe.expected}" if tells else "")

    @property
    def is_chain(self) -> bool:
        """Whether `compress run` measures every stage."""
        return self.chain is not None

    def models(self) -> list[int]:
        """The stages before the last one that make a model."""
        return [i for i in self.indices[:-1] if self.stage(i).makes == "model"]


def select_requested_stages(
    recipe: Recipe, places: Sequence[int], options: ChainOptions | None
) -> tuple[int | None, list[int]]:
    """(the stage from which on all are made anew, those that run) of the stages at `places`. Raises UserError."""
    if options is None:
        return None, list(places)
    begin = None if options.begin is None else chain.find(recipe, places, options.begin, "--from")
    end = places[-1] if options.until is None else chain.find(recipe, places, options.until, "--until")
    if begin is not None and begin > end:
        raise UserError(
            "no stage to run", where="--from", why=f"{chain.label(recipe, begin)} comes after --until",
            do=f"name {chain.label(recipe, end)} or a stage before it",
        )  # fmt: skip
    return begin, [i for i in places if i <= end]
