"""Student initialization: from layers of the teacher, from a checkpoint, or from the previous stage.

Random weights come only where a recipe asks for them, or where nothing fits, and are told each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compress.contracts import Batch
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import Examples
from compress.data.tables.label_order import have_same_labels
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.shapes import resize_config
from compress.encoder.config.sparsity import dense, is_sparse
from compress.encoder.infer.statistics import collect
from compress.encoder.modules.model import Model
from compress.encoder.reshape.narrow import check_narrowable, check_narrower, narrow
from compress.encoder.reshape.students import take_layers
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import FolderInfo, LoadedModel, load_model
from compress.modelfolder.resolve import resolve
from compress.stages.distill import layers
from compress.stages.distill.student_spec import NARROWING, StudentSpec
from compress.stages.shared.model_shape import ModelShape, read_shape
from compress.stages.shared.stage import StageContext, require_folder

SAMPLE_ROWS = 1024
SAMPLE_TOKENS = 4096  # of one batch

Sample = Callable[[], Iterable[Batch]]
"""Real input as the student's tokenizer cuts it, the same in every stage that is born alike."""


@dataclass(frozen=True)
class Answers:
    """What a head answers. names: of the labels."""

    head: HeadConfig
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Origin:
    """Where a student's weights and tokenizer come from. donor: whose weights they are, with the head that is wanted.

    folder: of the checkpoint, where the donor is not the teacher.  how: None for the student of a previous stage.
    """

    donor: LoadedModel
    how: StudentSpec | None
    folder: Path | None = None

    @property
    def tokenizer_files(self) -> Mapping[str, bytes]:
        return self.donor.tokenizer_files

    @property
    def copied(self) -> list[int] | None:
        """The teacher's layers that the student keeps, where it is cut from the teacher."""
        if self.how is None or self.folder is not None:
            return None
        return layers.resolve(self.how, self.donor.config.depth)

    def is_wider_than(self, student: Model) -> bool:
        """Whether the student's hidden states were narrowed, not drawn at random."""
        return self.how is not None and self.how.init != "random" and student.config.hidden < self.donor.config.hidden

    def parents(self) -> dict[str, Path]:
        """Of the lineage, beside the teacher."""
        return {} if self.folder is None else {"start": self.folder}


def origin(
    how: StudentSpec | None,
    context: StageContext,
    teacher: LoadedModel | None,
    head: str | None,
    answers: Answers | None = None,
) -> Origin:
    """Open what the student starts from. head: the one that it will have, None for an encoder alone.  answers: of its
    task head, where no model teaches.

    Raises UserError where the layers of a teacher are needed and there is none."""
    if how is not None and how.model is None:
        if teacher is None:
            raise make_no_model_error()
        return Origin(teacher, how)
    if how is not None and how.model is not None:
        folder = resolve(how.model)
    else:
        folder = require_folder(context.model, "the student of a previous stage", "--model", "distill")
    if teacher is not None and head is not None:
        answers = Answers(teacher.heads[head], teacher.label_names)
    info = modelfolder.inspect(folder)
    fresh = None
    if answers is not None and head is not None and not _answers_alike(info, answers, head):
        fresh = {head: _new_head(info, answers.head)}
    kept = () if fresh or head is None else {head}
    made = load_model(folder, keep=kept, new_heads=fresh, seed=context.seed, device=context.device)
    if fresh and head is not None:
        if how is None and teacher is not None:
            _take_head(made.model, teacher.model, head, context)
        elif fresh[head].kind != "embedding":  # which has no weights
            context.say(f"the student's {head} head is randomly initialized: {folder} has no such head")
    return Origin(made, how, folder)


def _new_head(info: FolderInfo, wanted: HeadConfig) -> HeadConfig:
    """A head like this for a checkpoint without one; of an embedding, without Dense modules."""
    if wanted.kind != "embedding":
        return info.new_head(wanted)
    return dataclasses.replace(wanted, denses=()).fit_hidden(info.config.hidden)


def _refuse_new_denses(how: StudentSpec, donor: LoadedModel, head: str | None) -> None:
    if how.head == "new" and head is not None and donor.heads[head].denses:
        raise UserError("new Dense modules are not supported", where="student.head", do="use head: teacher")


def make_no_model_error() -> UserError:
    """Where columns teach, there is no teacher whose layers a student could start from."""
    return UserError(
        "no model to initialize the student from", where="--student", why="the teacher is columns of the data",
        do="add --student FOLDER (and --layers), or --teacher FOLDER",
    )  # fmt: skip


def initialize_student(source: Origin, context: StageContext, head: str | None, sample: Sample) -> Model:
    """The student. sample: read by the ways of narrowing that look at real input. Raises UserError."""
    how, donor = source.how, source.donor
    if how is None:
        return donor.model
    _refuse_new_denses(how, donor, head)
    keep = layers.resolve(how, donor.config.depth)
    context.say(layers.sentence(keep, donor.config.depth, "teacher" if source.folder is None else "checkpoint"))
    student = take_layers(donor.model, keep, () if head is None else {head}, pooler=how.pooler)
    config = _resized(how, student.config)
    if how.init == "random":
        context.say("the student is randomly initialized, as the recipe requests")
        config = dataclasses.replace(config, layers=tuple(dense(shape) for shape in config.layers))
        heads = student.head_configs
        if config.hidden != student.config.hidden:
            heads = {name: head.fit_hidden(config.hidden) for name, head in heads.items()}
        return Model(config, heads).initialize(context.seed).to(context.device)
    if config != student.config:
        method = NARROWING if how.init == "teacher" else how.init
        statistics = collect(student, sample()) if method == "svd" else None
        context.say(f"the student is narrowed by {method}: {_shape(student.config)} to {_shape(config)}")
        student = narrow(student, config, method, seed=context.seed, statistics=statistics)
    if is_sparse(student.config):
        context.say("its matrices are 2:4 sparse like the weights it is initialized from; the zeros are kept")
    if how.head == "new" and head == "task":
        context.say("the student's task head is randomly initialized, as the recipe requests")
        fresh = Model(student.config, student.head_configs).initialize(context.seed)
        student.heads["task"].load_state_dict(fresh.heads["task"].state_dict())
    return student


def first_rows(examples: Examples, labelled: int, context: StageContext) -> Iterator[Batch]:
    """The first labelled rows: those that a stage and its control have in common."""
    few = examples.take(range(min(len(examples), labelled, SAMPLE_ROWS)))
    yield from (batch.to(context.device) for batch in evaluation_batches(few, SAMPLE_TOKENS))


def plan_shape(how: StudentSpec, teacher: ModelShape) -> ModelShape:
    """What will be born, before any weights are read. Raises UserError for layers and widths that cannot be."""
    donor = teacher if how.model is None else read_shape(resolve(how.model))
    keep = layers.resolve(how, donor.depth)
    made = dataclasses.replace(donor, depth=len(keep))
    if donor.config is None or not how.names_widths():
        return dataclasses.replace(made, config=None)
    if how.init != "random":
        check_narrowable(donor.config)
    old = dataclasses.replace(donor.config, **_kept(donor.config, keep))
    config = _resized(how, old)
    if how.init != "random":
        check_narrower(old, config)
    return dataclasses.replace(made, config=config)


def _kept(config: EncoderConfig, keep: list[int]) -> dict[str, object]:
    """What of a config depends on which layers there are, as far as widths ask for it."""
    bases = None if config.rotary_bases is None else tuple(config.rotary_bases[i] for i in keep)
    shapes = tuple(config.layers[i] for i in keep)
    free = {"windows": None, "global_tokens": 0, "layer_groups": None, "sharing": None, "global_projections": False}
    return {"layers": shapes, "rotary_bases": bases, **free}


def _resized(how: StudentSpec, config: EncoderConfig) -> EncoderConfig:
    """The config itself where no width is named: what its matrices are besides, thin or sparse, stays then."""
    if not how.names_widths():
        return config
    hidden = _find_hidden(how, config)
    return resize_config(
        config, hidden=hidden, heads=how.heads, feed_forward=how.intermediate_size, embedding=how.embedding
    )


def _find_hidden(how: StudentSpec, config: EncoderConfig) -> int | None:
    """Of half the width, the most that the heads divide."""
    if how.hidden != "half":
        return how.hidden
    heads = config.layers[0].heads
    return max(1, config.hidden // (2 * heads)) * heads


def _shape(config: EncoderConfig) -> str:
    """`6 layers x 384 (12 heads of 32, feed-forward 1536)`."""
    kinds = list(dict.fromkeys(config.layers))
    told = "; ".join(f"{s.heads} heads of {s.head_width}, feed-forward {s.feed_forward}" for s in kinds[:3])
    told += "; …" if len(kinds) > 3 else ""
    tables = "" if config.embedding is None else f", embeddings {config.embedding}"
    return f"{config.depth} layers x {config.hidden} ({told}{tables})"


def _answers_alike(info: FolderInfo, wanted: Answers, head: str) -> bool:
    """Whether a checkpoint has this head, and a task head answers what is wanted."""
    if head not in info.heads or head != "task":
        return head in info.heads
    ours, theirs = info.heads["task"], wanted.head
    if theirs.kind == "embedding":
        return ours.kind == theirs.kind  # of which width, the objectives say
    alike = (ours.kind, ours.problem) == (theirs.kind, theirs.problem)
    return alike and have_same_labels(info.label_names, wanted.names)


def _take_head(student: Model, donor: Model, head: str, context: StageContext) -> None:
    """Copy the teacher's head, and its pooler where the head reads one, if the widths agree."""
    same_style = student.head_configs[head].style == donor.head_configs[head].style
    if student.config.hidden != donor.config.hidden or not same_style:
        context.say(f"the student's {head} head is randomly initialized: its shape differs from the teacher's")
        return
    student.heads[head].load_state_dict(donor.heads[head].state_dict())
    if donor.head_configs[head].needs_pooler and student.encoder.pooler and donor.encoder.pooler:
        student.encoder.pooler.load_state_dict(donor.encoder.pooler.state_dict())
    context.say(f"the student's {head} head is copied from the teacher")
