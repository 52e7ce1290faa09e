"""Reduce a model's vocabulary to the tokens a text needs, without training.

Word tables are most of a small model: of MiniLM's 22.7 million parameters half. Pieces that a text never uses carry
nothing for it. What is kept is chosen by counts on real text; the tokenizer is rebuilt so that text whose pieces all
stayed is cut as before, and gets the same answers to the bit. A word that lost its piece is spelled in smaller ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch

from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.tasks import task_of
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.unsupported import refuse_quantized
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.encoder.reshape.word_rows import keep_rows
from compress.modelfolder.folder import LoadedModel
from compress.objectives.hard_labels import Objective as HardLabels
from compress.predict.predictor import MAX_TOKENS
from compress.stages.prune_vocab.dependencies import TokenizerParts, take_apart
from compress.stages.prune_vocab.rebuild import LEFT_OUT, rebuild_tokenizer_files
from compress.stages.prune_vocab.report import Report
from compress.stages.prune_vocab.selection import Choice, always, choose
from compress.stages.prune_vocab.spec import Spec
from compress.stages.prune_vocab.usage import Loss, TokenizedTexts, count_corpus, loss, read_held_out, read_rows
from compress.stages.shared.model_shape import ModelShape
from compress.stages.shared.originals import Original
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput
from compress.stages.shared.task_data import TaskData
from compress.stages.shared.validation import collect_logits, task_choice, task_validation
from compress.training.module import StageModule


class Stage:
    """Removes tokens that a text does not need from a model's vocabulary."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        made = start or (general if self.spec.level == "general" else teacher)
        if made is None:
            return None
        if made.config is not None:
            refuse_quantized(made.config, "cutting its vocabulary", "")
        return dataclasses.replace(made, vocabulary=None, config=None)

    def plan(self) -> list[str]:
        s = self.spec
        texts = {"data": "the training texts", "corpus": "the corpus", "both": "the training texts and the corpus"}
        return [
            f"cut the vocabulary by {s.amount}, tokens counted in {texts[s.text]}; special tokens, bytes and "
            f"{s.characters} single characters are kept"
        ]

    def prepare(self) -> PreparedStage:
        """Choose the tokens that stay, and rebuild tokenizer and tables here; nothing is left for the training loop.

        Raises UserError where there is no model, for a quantized one, for a tokenizer that cannot be cut, and where the
        held-out text becomes unreadable; Stopped where a signal asked for it."""
        c, s = self.context, self.spec
        original = Original.of(c, s.level, "prune-vocab")
        folder, loaded = original.folder, original.loaded
        refuse_quantized(loaded.config, "cutting its vocabulary", str(folder))
        tokenizer = Tokenizer.from_files(loaded.tokenizer_files, where=str(folder))
        tokenizer.check_fits(loaded.config.vocabulary, where=str(folder))
        pieces = take_apart(tokenizer, str(folder))
        c.workshop.stop()
        counts = self._counts(tokenizer, loaded.config)
        choice = self._choice(pieces, counts, loaded.config, str(folder))
        files = rebuild_tokenizer_files(pieces, choice.kept, str(folder))
        small = Tokenizer.from_files(files, where=str(folder))
        made = keep_rows(loaded.model, torch.from_numpy(choice.kept), str(folder)).eval()
        held = self._held_out(tokenizer, loaded.config)
        lost = loss(held, self._held_out(small, loaded.config), choice.new_ids, pieces.unknown, str(folder))
        for name in LEFT_OUT:
            if name in loaded.tokenizer_files:
                c.say(f"{name} contains the full vocabulary and is not copied: tokenizer.json replaces it")
        report = Report(
            choice,
            lost,
            _megabytes(loaded.config, made.config),
            self._validation(loaded, made, files),
            c,
        )
        unknown = 0 if pieces.unknown is None else int(counts[pieces.unknown])
        report.warn(unknown / max(1, int(counts.sum())))
        return self._prepared(original, made, files, choice, lost, report)

    def _prepared(
        self,
        original: Original,
        made: Model,
        files: Mapping[str, bytes],
        choice: Choice,
        lost: Loss,
        report: Report,
    ) -> PreparedStage:
        c, s = self.context, self.spec
        note = (
            f"vocabulary cut from {choice.rows:,} to {len(choice.kept):,} rows by {s.amount}, without training; "
            f"{100 * lost.coverage:.2f} % of held-out tokens kept, {100 * lost.changed:.2f} % of held-out texts "
            "tokenized differently"
        )
        meta = original.meta(note)
        c.say(f"{choice.rows:,} rows of the word table became {len(choice.kept):,}")
        return PreparedStage(
            finish=lambda: StageOutput(made, files, meta),
            params={
                "student.layers": made.config.depth,
                "student.hidden": made.config.hidden,
                "vocabulary.before": choice.rows,
                "vocabulary.after": len(choice.kept),
                "prune_vocab.by": s.amount,
            },
            told=report.tell,
        )

    # --- texts ------------------------------------------------------------------------------------------------

    def _counts(self, tokenizer: Tokenizer, config: EncoderConfig) -> np.ndarray:
        """(V,) how often the counted text holds each piece."""
        c, s = self.context, self.spec
        found = np.zeros(config.vocabulary, dtype=np.int64)
        if s.text != "corpus":
            found += self._rows("train", tokenizer, config).counts(config.vocabulary)
        if s.text != "data":
            found += count_corpus(c.corpus(), tokenizer, config.vocabulary, c.workshop.stop)
        return found

    def _held_out(self, tokenizer: Tokenizer, config: EncoderConfig) -> TokenizedTexts:
        """What the model will read: rows of the task where there is one, whatever the pieces were counted in."""
        if self.spec.level == "general":
            return read_held_out(self.context.corpus(), tokenizer)
        return self._rows("validation", tokenizer, config)

    def _rows(self, split: str, tokenizer: Tokenizer, config: EncoderConfig) -> TokenizedTexts:
        """As much of each text as the model has positions for."""
        table = self.context.table()
        return read_rows(task_of(table.task, table.settings), tokenizer, table.split(split), config.max_positions)

    def _choice(self, pieces: TokenizerParts, counts: np.ndarray, config: EncoderConfig, where: str) -> Choice:
        # RoBERTa counts positions from the row after the padding's: that one must stay where it is.
        rows = range(config.pad_id + 1) if config.position_offset else (config.pad_id,)
        kept = always(pieces, counts, self.spec, rows, where)
        return choose(pieces, counts, kept, self.spec, where)

    def _validation(
        self, loaded: LoadedModel, made: Model, files: Mapping[str, bytes]
    ) -> dict[str, tuple[float, float]]:
        """The main metric on validation, before and after."""
        c = self.context
        if self.spec.level == "general":
            return {}
        metric, _ = task_choice(c.table())
        task = task_of(c.table().task, c.table().settings)
        vectors: list[np.ndarray] = []
        small = dataclasses.replace(loaded, model=made, config=made.config, tokenizer_files=files)
        found = []
        for model in (loaded, small):
            c.workshop.stop()
            data = TaskData.encode(c.table(), model, dataclasses.replace(c, say=lambda _: None))
            if task.label_free:
                vectors.append(self._vectors(model.model, data))
                rows, names = c.table().split("validation"), c.table().label_names
                scores = task.score_against(vectors[-1], vectors[0], names, data.validation, rows)
                found.append(scores.value(metric))
                continue
            validate = task_validation(data, c.table(), c)
            with torch.no_grad():
                found.append(validate(StageModule(model.model, {"hard_labels": (1.0, HardLabels())}).eval())[metric])
        return {metric: (found[0], found[1])}

    def _vectors(self, model: Model, data: TaskData) -> np.ndarray:
        """(N, D) of the validation texts as the model's own tokenizer reads them."""
        rows = evaluation_batches(data.validation, MAX_TOKENS)
        batches = [batch.to(self.context.device) for batch in rows]
        with torch.no_grad():
            return collect_logits(prepare(model), batches, data.validation)


def _megabytes(before: EncoderConfig, after: EncoderConfig) -> tuple[float, float]:
    """10^6 bytes of the word table in fp32."""
    return 4e-6 * before.vocabulary * before.width, 4e-6 * after.vocabulary * after.width
