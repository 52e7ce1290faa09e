"""The teachers of a run: model folders that were named, or a recipe that makes the teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compress.contracts import Override, StageSpec
from compress.encoder.config.encoder import HeadConfig
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.ensemble import Ensemble, Member, normalize_weights
from compress.modelfolder.resolve import require_teacher, resolve
from compress.modelfolder.sentence_head import EMBEDDING
from compress.recipe import LoadedRecipe, Recipe, TeacherRow
from compress.recipe.library import is_recipe
from compress.recipe.library import names as recipe_names
from compress.stages.shared.model_shape import ModelShape, read_shape

STUDENTS = (
    "unlabelled_split", "labelled_rows", "unlabelled", "unlabelled_rows", "pool", "pool_rows", "pool_by",
    "teacher_columns", "teacher_values", "teacher_noise", "allow_overlap",
)  # fmt: skip
"""Keys of `data` that say what a student is trained on; a teacher recipe is trained on all labelled rows."""


@dataclass(frozen=True)
class Teachers:
    """task: the folder whose task head teaches, of several the lead's; None where the teacher only teaches on a corpus.
    general: the pretrained encoder that teaches on a corpus.

    ensemble: all of several, None of one.  told: which of them (0 of one) have a tracked run of their own, that of a
    teacher recipe, in the store and experiment of this run.
    """

    task: Path | None = None
    general: Path | None = None
    told: frozenset[int] = frozenset()
    ensemble: Ensemble | None = None

    def fingerprints(self) -> dict[str, str]:
        """What they are called → what they are."""
        folders = {"teacher": self.task, "general teacher": self.general}
        found = {name: modelfolder.fingerprint(folder) for name, folder in folders.items() if folder is not None}
        return found if self.ensemble is None else {**found, "teacher": self.ensemble.fingerprint}

    def read_shapes(self) -> tuple[ModelShape | None, ModelShape | None]:
        """Of the two folders."""
        task = None if self.task is None else read_shape(self.task)
        return task, task if self.general == self.task else None if self.general is None else read_shape(self.general)


def find_teachers(recipe: Recipe, name: str, inputs: Mapping[str, Path], *, lead: bool = True) -> Teachers:
    """The teachers of a recipe, `name` being that of a model folder. inputs: may hold `general_teacher`.

    lead: False for one of several whose head alone teaches.
    """
    task, general = teacher_folder(name), inputs.get("general_teacher")
    heads = modelfolder.inspect(task).heads
    if "task" not in heads and any(_level(s) == "task_specific" for s in recipe.stages):
        raise UserError(
            "the teacher has no task head",
            where=f"--teacher {name}",
            do=f"fine-tune it first: compress finetune --model {name}",
        )
    if not lead:
        return Teachers(task)
    corpus = [s for s in recipe.stages if _level(s) == "general"]
    reads = any(s.reads_vocabulary() for s in corpus)
    is_tuned = "task" in heads and heads["task"].kind != EMBEDDING
    if general is None and ("mlm" in heads or not (reads or is_tuned)):
        general = task
    if corpus:
        if general is None:
            learns = any(stage.learns for stage in corpus)
            role = "teacher" if learns else "model"
            needed = f"a {role} with a masked-LM head" if reads else f"the {role}'s pretrained encoder"
            raise UserError(
                f"recipe {recipe.name} {'first trains' if learns else 'measures'} on a corpus, which needs {needed}",
                where=f"--teacher {name}" if learns else f"MODEL {name}",
                why=f"this {role} has none" if reads else f"this {role} is fine-tuned",
                do=_without(recipe, corpus),
            )
        if reads and "mlm" not in modelfolder.inspect(general).heads:
            raise UserError(
                "the general teacher has no masked-LM head",
                where=f"--general-teacher {general}",
                do=f"name another, or train one: compress pretrain {general} --corpus TEXT",
            )
    return Teachers(task if teaches_task(recipe, heads) else None, general)


def teaches_task(recipe: Recipe, heads: Mapping[str, HeadConfig]) -> bool:
    """Whether a teacher with these heads answers the task of the recipe's data: an encoder without a task head does
    not, and an embedding model does not where a stage trains on labels."""
    head = heads.get("task")
    tunes = any(stage.answers_task() and not stage.compresses for stage in recipe.stages)
    return head is not None and not (tunes and head.kind == EMBEDDING)


def require_use_of_general(recipe: Recipe, folder: Path) -> None:
    """Raise UserError for a general teacher that no stage reads."""
    if any(_level(stage) == "general" or _replaces_words(stage) for stage in recipe.stages):
        return
    why = f"no stage of recipe {recipe.name} trains on a corpus or replaces words (--augment masked-lm)"
    raise UserError("has no effect", where=f"--general-teacher {folder}", why=why, do="remove it")


def join_teachers(recipe: Recipe, made: Sequence[Teachers]) -> Teachers:
    """Those of each row of `recipe.taught_by` as the recipe's. Raises UserError for several that do not fit."""
    if recipe.teachers is None:
        return made[0]
    names = [row.model if row.seed is None else f"{row.model} (seed {row.seed})" for row in recipe.teachers]
    weights = normalize_weights([row.weight for row in recipe.teachers])
    members = []
    for name, one, weight in zip(names, made, weights, strict=True):
        if one.task is None:
            why = "it has no task head, and several teachers answer a task together"
            raise UserError(
                "cannot be one of several teachers", where=f"--teacher {name}", why=why, do="give one teacher"
            )
        members.append(Member(name, one.task, weight))
    ensemble = Ensemble(tuple(members), recipe.combine or "logits", recipe.lead)
    assert recipe.data is not None
    ensemble.check(recipe.data.max_length)
    told = frozenset(i for i, one in enumerate(made) if one.told)
    return replace(made[recipe.lead], told=told, ensemble=ensemble)


def teacher_rows(recipe: Recipe) -> tuple[TeacherRow, ...]:
    """Who the recipe says teaches. Raises UserError for nobody."""
    rows = recipe.taught_by
    if not rows:
        raise UserError(
            f"recipe {recipe.name} needs a teacher", where="--teacher",
            do="name a fine-tuned model's folder, or a teacher recipe such as 'teacher'",
        )  # fmt: skip
    return rows


def teacher_recipe(recipe: Recipe, row: TeacherRow) -> Recipe | None:
    """The recipe that makes a teacher, on the data of `recipe`; None when the teacher is a folder."""
    if not is_recipe(row.model):
        return None
    seed = () if row.seed is None else (Override("seed", row.seed, f"the teacher's seed {row.seed}"),)
    teacher = LoadedRecipe.read(row.model)
    return teacher.with_overrides([*overrides(recipe, teacher.recipe), *seed]).recipe


def teacher_folder(name: str) -> Path:
    """The folder of a teacher that is no recipe; a misspelt recipe is reported as one."""
    require_teacher(name)
    return resolve(name)


def overrides(student: Recipe, teacher: Recipe) -> list[Override]:
    """A teacher learns from the data of its student: where the two recipes differ, the student's data counts. How many
    labels the student sees is its own: the teacher stands for a model that was trained on all of them."""
    found = []
    for block in ("data", "corpus"):
        ours, theirs = getattr(student, block), getattr(teacher, block)
        if ours is None or theirs is None:
            continue
        other = theirs.model_dump(mode="json")
        for key, value in ours.model_dump(mode="json").items():
            if key not in STUDENTS and value != other[key]:
                found.append(Override(f"{block}.{key}", value, f"the student's {block}.{key}"))
    return found


def _without(recipe: Recipe, corpus: Sequence[StageSpec]) -> str:
    """What to do for lack of a general teacher: there is a recipe that does without, or another model is needed."""
    if not any(stage.learns for stage in corpus):
        return "name a pretrained encoder"
    others = sorted(corpus, key=lambda stage: stage.learns)
    names = [f"{recipe.name}-task", *(stage.task_recipe for stage in others)]
    name = next(name for name in names if name in recipe_names())
    return f"add --general-teacher FOLDER, or use --recipe {name}"


def _level(stage: object) -> str:
    return getattr(stage, "level", "")


def _replaces_words(stage: object) -> bool:
    """Whether a masked-LM head proposes words, and no other model is named for it."""
    spec = getattr(stage, "augmentation", None)
    return spec is not None and spec.method == "masked-lm" and spec.model is None
