"""What general and task-specific distillation have in common: objectives, who teaches, how long, what is noted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from torch import nn

from compress import registry
from compress.contracts import Batch, BatchSource, Objective, Teacher, TrainingPlan
from compress.encoder.config.layer_maps import ModelPair
from compress.encoder.infer.prepare import Precision
from compress.encoder.modules.model import Model
from compress.errors import format_count
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import FolderMeta, LoadedModel
from compress.objectives._layers import Layerwise
from compress.stages.distill import initialization, layers
from compress.stages.distill.cache.source import TeacherSetup, TeachingJob, set_up_teacher
from compress.stages.distill.projections import fit_projections, have_projections
from compress.stages.distill.quantization_aware import Ranges
from compress.stages.distill.spec import Spec
from compress.stages.distill.two_tokenizers import check_comparable
from compress.stages.distill.tying import Tying
from compress.stages.shared.stage import StageContext
from compress.stages.shared.training_plan import settle_plan
from compress.training.module import Regularizer, StageModule
from compress.training.schedule import total_steps

NARROWED = 4.0
"""Times the usual learning rate, for a student that was just narrowed: it has more to learn than a fine-tuned model has
(benchmarks/RESULTS.md, "Half of the layers")."""


def build_objectives(spec: Spec) -> dict[str, tuple[float, nn.Module]]:
    """Name → (weight, objective) of the recipe, not yet bound to models."""
    built: dict[str, tuple[float, nn.Module]] = {}
    for row in spec.objectives:
        name = row.kind
        while name in built:  # the same objective twice, say at two temperatures
            name += "_again"
        built[name] = (row.weight, registry.build("compress.objectives", row))
    return built


class Preparation:
    """What a distillation needs before its first step."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def set_up_teaching(
        self,
        teacher: LoadedModel,
        fingerprint: str,
        objectives: Mapping[str, tuple[float, nn.Module]],
        source: BatchSource,
        tokenizer: str,
        max_length: int,
        live: Callable[[Precision], Teacher],
    ) -> TeacherSetup:
        """Whom the objectives ask: the live teacher, or what the recipe's cache holds of it."""
        spec = self.spec
        passes = total_steps(spec.training, source) / source.steps(0)
        job = TeachingJob(spec.level, source, tokenizer, max_length, passes)
        parts = [objective for _, objective in objectives.values()]
        return set_up_teacher(spec.cache, self.context, teacher.model, fingerprint, parts, job, live)

    def settle_plan(
        self,
        source: BatchSource,
        student: Model,
        tying: Tying,
        begun: initialization.Origin,
        *,
        validated: bool = True,
    ) -> TrainingPlan:
        """How long and how fast. Ramps, and ranges that are frozen, need the number of steps before training."""
        paced = bool(self.list_regularizers(student, tying))
        hidden, factor = student.config.hidden, NARROWED if begun.is_wider_than(student) else 1.0
        return settle_plan(
            self.spec.training, source, hidden, self.context,
            open_ended=validated and not paced, factor=factor, why="for a student that was just narrowed",
        )  # fmt: skip

    def list_regularizers(self, student: Model, tying: Tying) -> list[Regularizer]:
        """What acts on the student's weights beside the objectives."""
        ranges = Ranges(student, self.spec)
        return [*tying.regularizers, *([ranges] if ranges.quantizers else [])]

    def check_tokens(self, begun: initialization.Origin, teacher: LoadedModel) -> bool:
        """Whether the student reads other pieces than its teacher. Raises UserError where these could not be
        compared."""
        if begun.folder is None or modelfolder.same_vocabulary(begun.folder, teacher.path):
            return False
        check_comparable(self.spec, build_objectives(self.spec), str(begun.folder), str(teacher.path))
        return True

    def bind_objectives(
        self, student: Model, teacher: Model, source: BatchSource, copied: Sequence[int] | None
    ) -> dict[str, tuple[float, nn.Module]]:
        """The recipe's objectives for these two models, with the layers that they compare. copied: the teacher's layers
        that the student keeps."""
        built = build_objectives(self.spec)
        self._report_maps(built)
        pair = ModelPair(student.config, teacher.config, ())
        if any(isinstance(o, Layerwise) for _, o in built.values()):  # the others read no map, and measuring one costs
            pair = self._map_layers(student, teacher, source, copied)
        for _, objective in built.values():
            cast(Objective, objective).bind(pair)
            objective.to(self.context.device)
        return built

    def fit_projections(
        self,
        student: Model,
        objectives: Mapping[str, tuple[float, nn.Module]],
        source: BatchSource,
        live: Callable[[Precision], Teacher],
        kind: type[StageModule] = StageModule,
    ) -> None:
        """Initialize the objectives' projections on real input, where widths differ. kind: of what trains."""
        if have_projections(objective for _, objective in objectives.values()):
            module = kind(student, objectives, live(self.context.precision))
            count = fit_projections(module, self.read(source))
            if count:
                self.context.say(f"{format_count(count, 'projection')} of hidden states initialized by least squares")

    def _report_maps(self, built: Mapping[str, tuple[float, nn.Module]]) -> None:
        """Fused kernels never hold attention maps: what reads them has them computed by plain products."""
        needs = {name: cast(Objective, objective).student_needs for name, (_, objective) in built.items()}
        reading = [name for name, n in needs.items() if n.attentions or n.attention_scores]
        if reading:
            self.context.say(
                f"{' and '.join(reading)} reads attention maps, which fused attention kernels do not return: "
                "attention is computed without them, which is slower and needs memory quadratic in the length"
            )

    def _map_layers(
        self, student: Model, teacher: Model, source: BatchSource, copied: Sequence[int] | None
    ) -> ModelPair:
        """The models with the layers that are compared, which are told."""
        spec = self.spec
        pair = layers.resolve_compared_layers(
            spec.layer_map, student, teacher, copied=copied, batches=lambda: self.read(source)
        )
        self.context.say(layers.comparison(pair, spec.layer_map))
        return pair

    def read(self, source: BatchSource) -> Iterator[Batch]:
        """Real input in the order of the first epoch."""
        for index in range(source.steps(0)):
            yield from (batch.to(self.context.device) for batch in source.step(0, index))

    @property
    def calibration_rows(self) -> int:
        """Rows that ranges are observed on."""
        return 0 if self.spec.quantize is None else self.spec.quantize.rows

    def read_first(self, source: BatchSource) -> Iterator[Batch]:
        """Real input, as many rows as ranges are observed on."""
        left = self.calibration_rows
        for batch in self.read(source):
            if left <= 0:
                return
            left -= batch.rows
            yield batch

    @staticmethod
    def add_note(meta: FolderMeta, student: Model) -> FolderMeta:
        """meta, with a word about rounding."""
        if student.config.quantization is None:
            return meta
        return meta.model_copy(
            update={"notes": (*meta.notes, "trained with quantization-aware training, as it is deployed")}
        )

    @staticmethod
    def list_params(student: Model) -> dict[str, int]:
        """What is logged of the student."""
        return {"student.layers": student.config.depth, "student.hidden": student.config.hidden}
