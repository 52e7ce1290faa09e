"""A plan made: layers, heads and neurons cut, what is left fitted by least squares, vocabulary and tables cut, rounded,
written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import KeptUnits, prune_units
from compress.encoder.reshape.students import take_layers
from compress.encoder.reshape.word_rows import keep_rows
from compress.fit.cost.serving import Serving, content, count_stored_bytes, quantize_to_bits
from compress.fit.loss.study import Student
from compress.fit.make.joined_layers import collect_statistics, join_layers
from compress.fit.plan.planner import Shape
from compress.fit.plan.plans import Plan, Scales, Space
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import DataNote, FolderMeta, Parent
from compress.modelfolder.names import model_label
from compress.modelfolder.sentence_files import sentence_files
from compress.onnx.check import ROWS
from compress.onnx.writer import write_into
from compress.predict.predictor import MAX_TOKENS
from compress.stages.prune_width.costs import Counts
from compress.stages.prune_width.refit import Cut, refit_all
from compress.stages.prune_width.selection import select_highest
from compress.storage import atomic
from evaluation.cost.size import MB


class Maker:
    """Makes the plans of one model. stop: called between passes."""

    def __init__(self, student: Student, space: Space, stop: Callable[[], None]) -> None:
        self.student, self.space, self.stop = student, space, stop
        self.source, self.study = space.study.loaded, space.study
        self.sentence_files = sentence_files(self.source.path, self.source.config)

    def of(self, plan: Plan, *, fitted: bool = True) -> Model:
        """A plan's model with what it keeps of layers, heads and neurons, and what layers share; nothing else cut."""
        made = self.narrow(plan.layers, Counts(plan.heads, plan.neurons), fitted=fitted)
        if not plan.joined:
            return made
        self.stop()
        firsts = [plan.layers.index(layer) for layer in plan.joined]
        return join_layers(made, firsts, collect_statistics(made, self.student.batches) if fitted else None)

    def narrow(self, layers: tuple[int, ...], counts: Counts, *, fitted: bool = True) -> Model:
        """The model of these layers with so many heads and neurons in each unit of the whole one, fitted anew."""
        cut = self._cut(layers, counts)
        if fitted:
            self._refit([cut])
        return cut.made.eval()

    def _cut(self, layers: tuple[int, ...], counts: Counts) -> Cut:
        """The same with nothing fitted; of the model itself where nothing goes."""
        model, scores = self.source.model, self.study.scores
        whole = Counts.of(model.config)
        chosen = Counts(
            tuple(n or most for n, most in zip(counts.heads, whole.heads, strict=True)),
            tuple(n or most for n, most in zip(counts.neurons, whole.neurons, strict=True)),
        )
        kept = select_highest(scores, chosen)
        if counts == whole and len(layers) == model.config.depth:
            return Cut(model, kept, layers)
        if len(layers) < model.config.depth:  # then every unit is one layer
            kept = KeptUnits(tuple(kept.heads[i] for i in layers), tuple(kept.neurons[i] for i in layers))
            return Cut(prune_units(take_layers(model, layers), kept), kept, layers)
        return Cut(prune_units(model, kept), kept, layers)

    def _refit(self, cuts: Sequence[Cut]) -> None:
        """In place; a cut that is the model itself stays as it is."""
        changed = [cut for cut in cuts if cut.made is not self.source.model]
        if changed:
            refit_all(changed, self.source.model, self.student.batches, self.stop)

    def needs_narrowing(self, plan: Plan) -> bool:
        """Whether a plan leaves out layers, heads or neurons, or joins layers."""
        config = self.source.model.config
        return (
            bool(plan.joined)
            or len(plan.layers) < config.depth
            or Counts(plan.heads, plan.neurons) != Counts.of(config)
        )

    def save_narrow(self, plan: Plan, folder: Path, data: DataNote) -> None:
        """What `of` gives: a plan's model with nothing rounded, its vocabulary and tables whole."""
        made = self.of(plan)
        files, meta = self.source.tokenizer_files, self._meta(plan, data)
        self._save(folder, made, files, meta)

    def model(
        self, plan: Plan, serving: Serving, *, fitted: bool = True, narrow: Model | None = None
    ) -> tuple[Model, dict[str, bytes]]:
        """The model as it will be rounded, and its tokenizer's files.

        fitted: False where its size alone matters.  narrow: what `of` gave, trained meanwhile.
        """
        made = narrow or self.of(plan, fitted=fitted)
        vocabulary = self.space.vocabulary(plan.vocabulary)
        if plan.rank:
            made = self.student.factorize_tables(made, plan.rank)
        if vocabulary.kept is not None:
            made = keep_rows(made, torch.from_numpy(vocabulary.kept), str(self.source.path)).eval()
        self.stop()
        files, bits = dict(vocabulary.files), plan.modules(self.source.config)
        texts = self.student.calibration(files, CALIBRATED if fitted else SIZED) if plan.ranges == "static" else ()
        return quantize_to_bits(made, bits, serving, texts), files

    def megabytes(self, plan: Plan, serving: Serving) -> float:
        """Of what will be deployed: exact, since no fitted number changes it; with static ranges to a few hundred
        bytes, since numbers that they have in common are stored once."""
        made, _ = self.model(plan, serving, fitted=False)
        return (len(content(made)) if serving.writes else count_stored_bytes(made)) / MB

    def write(
        self, plan: Plan, serving: Serving, folder: Path, data: DataNote, *, narrow: Model | None = None, how: str = ""
    ) -> Path:
        """The model folder of a plan, with its file where one is deployed, checked against the model.

        narrow: as `model` takes it.  how: it was trained, for the card.
        """
        made, files = self.model(plan, serving, narrow=narrow)
        return self._written(plan, made, files, serving, folder, data, how)

    def write_rounded(self, plan: Plan, made: Model, serving: Serving, folder: Path, data: DataNote, how: str) -> Path:
        """As `write`, of a model that was rounded as planned and trained on."""
        files = dict(self.space.vocabulary(plan.vocabulary).files)
        return self._written(plan, made, files, serving, folder, data, how)

    def save_parent(self, plan: Plan, folder: Path) -> Path:
        """The folder of the whole model over a plan's vocabulary: it reads what the plan's model reads. That of the
        model itself where the vocabulary is whole."""
        vocabulary, source = self.space.vocabulary(plan.vocabulary), self.source
        if vocabulary.kept is None:
            return source.path
        if not folder.is_dir() or atomic.verify_folder(folder):
            made = keep_rows(source.model, torch.from_numpy(vocabulary.kept), str(source.path)).eval()
            note = f"parent of a fit with {vocabulary.rows:,} tokens of its vocabulary, used as teacher"
            meta = source.meta.model_copy(update={"lineage": (self._parent(),), "notes": (*source.meta.notes, note)})
            files = dict(vocabulary.files)
            self._save(folder, made, files, meta)
        return folder

    def _written(
        self, plan: Plan, made: Model, files: dict[str, bytes], serving: Serving, folder: Path, data: DataNote, how: str
    ) -> Path:
        meta = self._meta(plan, data, how)
        self._save(folder, made, files, meta)
        if serving.writes:
            student = self.student
            tokenizer = Tokenizer.from_files(files, where=str(folder))
            few = student.held.take(np.arange(min(ROWS, len(student.held))))
            examples = student.encode_rows(few, tokenizer)
            write_into(folder, list(evaluation_batches(examples, MAX_TOKENS)), f"{data.name}/validation")
        return folder

    def _save(self, folder: Path, made: Model, files: Mapping[str, bytes], meta: FolderMeta) -> None:
        """The folder of a model made from the source's, which turns a text into a vector as that one does."""
        beside, replace = self.sentence_files, folder.exists()
        modelfolder.save_model(folder, made, tokenizer_files=files, meta=meta, beside=beside, replace=replace)

    def _parent(self) -> Parent:
        path = self.source.path
        return Parent(role="parent", name=model_label(path), fingerprint=modelfolder.fingerprint(path))

    def _meta(self, plan: Plan, data: DataNote, how: str = "") -> FolderMeta:
        source, table = self.source, self.student.table
        return FolderMeta(
            family=source.family,
            language=tuple(table.language) or source.meta.language,
            license=source.meta.license,
            task=table.task,
            label_names=tuple(table.label_names),
            task_settings={**source.meta.task_settings, **dict(table.settings)},
            method="fit",
            max_length=self.student.max_length,
            lineage=(self._parent(),),
            data=data,
            notes=(
                *source.meta.notes,
                f"fitted to a budget, {how or 'without training'}: {plan.sentence(source.config)}",
            ),
        )

    def scales(self) -> Scales:
        """From probes that are cut and fitted as plans are: all layers at PROBED of their width, and the model without
        the layer that is missed least."""
        config, study = self.source.config, self.study
        probes = [self.space.probe(part) for part in PROBED]
        cuts = [self._cut(plan.layers, Counts(plan.heads, plan.neurons)) for plan, _ in probes]
        least = int(np.argmin(study.drops)) if study.drops and min(study.drops) > 0 else None
        if least is not None:
            cuts.append(self._cut(tuple(i for i in range(config.depth) if i != least), Counts.of(config)))
        self._refit(cuts)
        lost = [self.student.compute_kl_to_parent(prepare(cut.made.eval())) for cut in cuts]
        shape = Shape.of([(total, loss) for (_, total), loss in zip(probes, lost, strict=False)])
        return Scales(shape) if least is None else Scales(shape, lost[-1] / study.drops[least])


CALIBRATED, SIZED = 512, 8
"""Training texts that static ranges are calibrated on, at most; and where the size alone matters."""
PROBED = (0.5, 0.2)
"""Shares of the milliseconds of heads and neurons at which it is measured what their losses come to together."""
