"""Share the layers of a trained encoder and factorize its embeddings (ALBERT, 1909.11942, from a trained BERT).

Sharing buys storage, not time: every layer is still computed. What it costs in quality is won back by distilling the
model as it was into what it became, in a stage after this one.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from compress import registry
from compress.contracts import Batch, LayerEvidence, LayerGroups, SharedStart
from compress.encoder.config.sharing import check_rank
from compress.encoder.config.unsupported import refuse_quantized
from compress.encoder.infer import statistics
from compress.encoder.modules.model import Model
from compress.encoder.modules.tied import check_tied
from compress.modelfolder import weights
from compress.stages.share import calibration, factorization
from compress.stages.share.conversion import (
    LayerStatistics,
    check_joins,
    convert,
    format_groups,
    refuse_own_biases,
    refuse_shared,
    refuse_unshareable,
    unshare_layers,
)
from compress.stages.share.factorization import Factorization
from compress.stages.share.spec import Spec
from compress.stages.shared.divergence import ReferenceAnswers
from compress.stages.shared.model_shape import ModelShape
from compress.stages.shared.originals import Original
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput
from compress.tracking import TrackedRun

PATTERNS, STARTS = "compress.stages.share.patterns", "compress.stages.share.starts"
BATCH_ROWS = 32
JUDGED = 8
"""Batches of real input that a pattern compares answers on."""
ERRORS = "embedding-error.json"


class Stage:
    """A trained model and real text → the same model with shared layers and factorized tables."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        made = start or (general if self.spec.level == "general" else teacher)
        if made is None:
            return None
        # What a pattern will measure is not known yet; whether it fits so many layers is.
        self._groups(made.depth, LayerEvidence(lambda: np.eye(made.depth), lambda groups: 0.0))
        if made.config is not None:
            self._check_sizes(made.config, "")
        return made if made.config is None else dataclasses.replace(made, config=None)

    def plan(self) -> list[str]:
        s = self.spec
        own = "norms and biases shared" if s.share_norms_and_biases else "norms and biases of their own"
        kept = f", residuals of rank {s.residual_rank}" if s.residual_rank else ""
        options = ", ".join(f"{k} {v}" for k, v in s.pattern.options().items())
        line = f"share layers by {s.pattern.kind}{f' ({options})' if options else ''}, starting from {s.init.kind}"
        e = s.embedding
        tables = ""
        if e is not None:
            size = f"width {e.size}" if e.size else f"error {e.error:g}" if e.error else f"{e.max_mb:g} MB"
            tables = f"; embeddings factorized to {size}, rows weighted by {e.weighting}"
        return [f"{line}, {own}{kept}{tables}"]

    def prepare(self) -> PreparedStage:
        """Choose groups of layers and convert the model here; nothing is left for the training loop.

        Raises UserError where there is no model, for sizes and groups that do not fit it, and where its layers share
        already (unless the row joins its groups further); Stopped where a signal asked for it."""
        c, s = self.context, self.spec
        original = Original.of(c, s.level, "share")
        where, model = str(original.folder), original.loaded.model
        self._check_sizes(model.config, where)
        refuse_own_biases(model.config, where)
        if not s.reuse_input:
            refuse_shared(model.config, where)
        batches = functools.partial(original.batches, BATCH_ROWS)
        own = unshare_layers(model) if s.reuse_input else model
        c.workshop.stop()
        start: SharedStart = registry.build(STARTS, s.init)
        known = self._known(start, own, original)

        def shared(groups: LayerGroups) -> Model:
            c.workshop.stop()
            own_vectors = not s.share_norms_and_biases
            return convert(own, groups, start, own_vectors=own_vectors, residual_rank=s.residual_rank, known=known)

        @functools.cache
        def reference() -> ReferenceAnswers:
            few = list(itertools.islice(batches(), JUDGED))
            return ReferenceAnswers(own.eval(), few, original.answers)

        evidence = LayerEvidence(
            similarity=lambda: calibration.similarity(own, batches()),
            damage=lambda groups: reference().divergence(shared(groups).eval()),
        )
        groups = self._groups(own.config.depth, evidence)
        if s.reuse_input:
            check_joins(model.config, groups, where)
        made = shared(groups)
        c.say(f"groups of layers: {format_groups(groups)}")
        factors = None
        if s.embedding is not None:
            c.workshop.stop()
            factors = self._factorize(made, batches)
            made = factorization.apply(made, factors)
        check_tied(made, weights.compute_expected_shapes(made.config, made.head_configs), where)
        return self._prepared(original, made.eval(), groups, factors)

    def _prepared(
        self, original: Original, made: Model, groups: LayerGroups, factors: Factorization | None
    ) -> PreparedStage:
        c, s, loaded = self.context, self.spec, original.loaded
        notes = [f"layers that share: {format_groups(groups)}, started from {s.init.kind}"]
        if factors is not None:
            notes.append(f"embeddings factorized to width {factors.size}, error {100 * factors.error:.1f} %")
        notes.append("sharing saves bytes, not time: every layer is still computed")
        meta = original.meta(*notes)
        count = made.config.count_parameters()
        c.say(f"{loaded.config.count_parameters():,} parameters became {count:,} (heads apart)")
        return PreparedStage(
            finish=lambda: StageOutput(made, loaded.tokenizer_files, meta),
            params={
                "student.layers": made.config.depth,
                "student.hidden": made.config.hidden,
                "share.pattern": s.pattern.kind,
                "share.groups": len(set(groups.attention) | set(groups.feed_forward)),
                "share.start": s.init.kind,
                "share.residual_rank": s.residual_rank,
                "share.embedding": made.config.width,
            },
            told=functools.partial(self._tell, factors),
        )

    def _groups(self, depth: int, evidence: LayerEvidence) -> LayerGroups:
        return registry.build(PATTERNS, self.spec.pattern)(depth, evidence)

    def _known(self, start: SharedStart, model: Model, original: Original) -> LayerStatistics:
        if start.reads == "inputs":
            return LayerStatistics(inputs=statistics.inputs(model, original.batches(BATCH_ROWS)))
        if start.reads == "gradients":
            return LayerStatistics(fisher=statistics.fisher(model, original.objective(), original.batches(1)))
        return LayerStatistics()

    # --- embeddings -------------------------------------------------------------------------------------------

    def _check_sizes(self, config: Any, where: str) -> None:
        """What can be told before anything is computed."""
        s = self.spec
        if s.pattern.kind == "none":
            refuse_quantized(config, "sharing its layers", where)
        else:
            refuse_unshareable(config, where)
        check_rank(s.residual_rank, config.layers, config.hidden, "residual_rank", config.sharing)
        if s.embedding is None:
            return
        factorization.refuse_factorized(config, where)
        if s.embedding.size is not None:
            factorization.check_size(s.embedding.size, config, "embedding.size")
        if s.embedding.max_mb is not None:
            factorization.size_for(config, s.embedding.max_mb, "embedding.max_mb")

    def _factorize(self, model: Model, batches: Callable[[], Iterator[Batch]]) -> Factorization:
        e = self.spec.embedding
        assert e is not None
        counts = factorization.count(model.config, batches())
        size, where = e.size, "embedding.size"
        if e.max_mb is not None:
            size, where = (
                factorization.size_for(model.config, e.max_mb, "embedding.max_mb"),
                "embedding.max_mb",
            )
        if e.error is not None:
            where = "embedding.error"
        weights = counts if e.weighting == "frequency" else None
        made = factorization.factorize(model, weights, size=size, error=e.error, where=where)
        made = dataclasses.replace(made, bands=factorization.bands(model, made, counts))
        self.context.say(
            f"embeddings factorized from width {model.config.hidden} to {made.size}: relative squared error"
            f" {100 * made.error:.2f} %, rows weighted by {e.weighting}"
        )
        return made

    def _tell(self, factors: Factorization | None, log: TrackedRun) -> None:
        if factors is None:
            return
        columns = ("uses in the training text", "vocabulary tokens", "of its tokens", "relative squared error")
        rows = [(b.name, f"{b.rows:,}", f"{100 * b.share:.1f} %", f"{100 * b.error:.2f} %") for b in factors.bands]
        self.context.show("error of the factorized embeddings", columns, rows)
        log.metrics({"share/embedding_error": factors.error, "share/embedding_size": float(factors.size)})
        log.metrics({f"share/embedding_error_{b.key}": b.error for b in factors.bands})
        log.table(self.context.folder / ERRORS, columns, rows)
