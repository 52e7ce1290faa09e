"""Turn an embedding model's vectors to their principal directions, and keep the first; a distillation after it trains
them (Matryoshka, Kusupati et al., arXiv 2205.13147)."""

from __future__ import annotations

import dataclasses

import torch

from compress.contracts import Needs
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.static import finish_static
from compress.encoder.reshape.project import project_vectors
from compress.errors import UserError
from compress.modelfolder.sentence_head import EMBEDDING
from compress.stages.reduce_dimensions.rotation import find_directions
from compress.stages.reduce_dimensions.spec import Spec
from compress.stages.shared.model_shape import ModelShape, make_no_vectors_error
from compress.stages.shared.originals import Original
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput

BATCH_ROWS = 32


class Stage:
    """A model for sentence embeddings and texts → the same model with vectors of other dimensions."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        made = start or teacher
        if made is not None and not made.embeds:
            raise make_no_vectors_error(self.spec.kind)
        return None if made is None else dataclasses.replace(made, config=None)

    def plan(self) -> list[str]:
        kept = "all dimensions" if self.spec.dimensions is None else f"the first {self.spec.dimensions} dimensions"
        return [f"turn the vectors to their principal directions and keep {kept}"]

    def prepare(self) -> PreparedStage:
        """Fit and apply the rotation here; nothing is left for the training loop.

        Raises UserError for a model that gives no vectors, and for more dimensions than it has or texts can fit;
        Stopped where a signal asked for it."""
        c = self.context
        original = Original.of(c, "task_specific", "reduce-dimensions")
        loaded = original.loaded
        head = loaded.heads["task"]
        if head.kind != EMBEDDING:
            raise make_no_vectors_error(self.spec.kind)
        kept = self.spec.dimensions or head.labels
        if kept > head.labels:
            raise UserError(
                f"{kept} dimensions", where="dimensions", why=f"the vectors of {original.folder} have {head.labels}",
                do=f"give {head.labels} or less",
            )  # fmt: skip
        rows = min(self.spec.rows, len(c.table().split("train")))
        if rows < kept:
            raise UserError(
                f"{rows} texts cannot fit {kept} dimensions", where="dimensions",
                do=f"give more texts, or {rows} dimensions or less",
            )  # fmt: skip
        vectors = self._embed(original, rows)
        directions = find_directions(vectors, kept)
        units = torch.nn.functional.normalize(vectors, dim=1)
        share = float((units @ directions).square().sum() / len(units))
        c.say(f"{kept} of {head.labels} dimensions hold {share:.1%} of the squared length of the vectors")
        made = project_vectors(loaded.model, directions).eval()
        meta = original.meta(f"vectors turned to their principal directions: {kept} of {head.labels} dimensions")
        meta = meta.model_copy(update={"max_length": loaded.meta.max_length})
        return PreparedStage(
            finish=lambda: StageOutput(finish_static(made), loaded.tokenizer_files, meta),
            params={
                "student.layers": made.config.depth,
                "student.hidden": made.config.hidden,
                "reduce_dimensions.dimensions": kept,
                "reduce_dimensions.share": share,
            },
        )

    def _embed(self, original: Original, rows: int) -> torch.Tensor:
        """(rows, D) fp32 vectors of the first training texts."""
        c = self.context
        model = prepare(original.loaded.model, c.precision)
        found, done = [], 0
        with c.workshop.progress("vectors", rows, "texts") as progress:
            for batch in original.batches(BATCH_ROWS):
                c.workshop.stop()
                logits = model(batch, Needs(logits=True)).logits
                assert logits is not None
                found.append(logits.float().cpu())
                done += batch.rows
                progress.update(min(done, rows))
                if done >= rows:
                    break
        return torch.cat(found)[:rows]
