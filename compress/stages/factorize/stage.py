"""Replace the matrices of an encoder's layers by low-rank factors.

It saves bytes more than time: two thin products run slower for each operation than one whole product does. What it
costs in quality is won back by distilling the model as it was into what it became, in a stage after this one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from compress import registry
from compress.contracts import FactorMethod
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.unsupported import (
    refuse_apart,
    refuse_dropped_tokens,
    refuse_low_rank,
    refuse_quantized,
    refuse_sparse,
)
from compress.encoder.infer import statistics
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.stages.factorize import allocation, conversion, sensitivity, timing
from compress.stages.factorize.allocation import Candidate, Ranks
from compress.stages.factorize.spec import Spec
from compress.stages.shared.model_shape import ModelShape
from compress.stages.shared.originals import Original, plan_same_shape
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput
from compress.tracking import TrackedRun

METHODS = "compress.stages.factorize.methods"
BATCH_ROWS = 32
RANKS = "ranks.json"


class Stage:
    """Replaces a trained model's matrices by low-rank factors, fitted on real text."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        return plan_same_shape(self.spec.level, start, teacher, general, self._check)

    def plan(self) -> list[str]:
        s = self.spec
        if s.rank is not None:
            goal = f"rank {s.rank}"
        elif s.ratio is not None:
            goal = f"{100 * s.ratio:g} % of their parameters"
        else:
            goal = f"{s.max_mb:g} MB in all"
        ranks = "" if s.rank is not None else f", ranks by {s.allocation}"
        ranks = ", uniform ranks" if ranks and s.allocation == "uniform" else ranks
        return [f"factorize the layers' matrices by {s.method.kind} to {goal}{ranks}"]

    def prepare(self) -> PreparedStage:
        """Choose a rank for each matrix and factorize the model here; nothing is left for the training loop.

        Raises UserError where there is no model, for a target that does not fit it, and for one of a form that
        the stage rejects; Stopped where a signal asked for it."""
        c, s = self.context, self.spec
        original = Original.of(c, s.level, "factorize")
        model, where = original.loaded.model, str(original.folder)
        self._check(model.config, where)
        method: FactorMethod = registry.build(METHODS, s.method)
        inputs, fisher = {}, {}
        if method.reads == "inputs":
            inputs = statistics.inputs(model, original.batches(BATCH_ROWS))
        if method.reads == "gradients":
            fisher = statistics.fisher(model, original.objective(), original.batches(1))
        found = conversion.factorize_matrices(model, method, inputs=inputs, fisher=fisher, stop=c.workshop.stop)
        known = conversion.candidates(model, found)
        if s.rank is None and s.allocation == "sensitivity":
            on, rows = original.answers, original.batches(BATCH_ROWS)
            with c.workshop.progress("sensitivity of each matrix", len(known), "matrices") as progress:
                told = progress.update
                known = sensitivity.measure_sensitivity(model, found, known, inputs, rows, on, c.workshop.stop, told)
        ranks = self._ranks(known, model)
        if s.only_faster:
            ranks = self._faster(ranks, known, model)
        made = conversion.convert(model, found, ranks, inputs).eval()
        return self._prepared(original, made, ranks, known)

    def _prepared(self, original: Original, made: Model, ranks: Ranks, known: Mapping[str, Candidate]) -> PreparedStage:
        c, s, loaded = self.context, self.spec, original.loaded
        share = allocation.count_numbers(known, ranks) / sum(one.whole for one in known.values())
        notes = (
            f"layer matrices factorized by {s.method.kind}, {100 * share:.1f} % of their parameters kept",
            "low rank reduces size more than latency",
        )
        meta = original.meta(*notes)
        before, after = (config.count_parameters() for config in (loaded.config, made.config))
        c.say(
            f"{before:,} parameters became {after:,} (without task heads), {100 * share:.1f} % of those in the matrices"
        )
        return PreparedStage(
            finish=lambda: StageOutput(made, loaded.tokenizer_files, meta),
            params={
                "student.layers": made.config.depth,
                "student.hidden": made.config.hidden,
                "factorize.method": s.method.kind,
                "factorize.allocation": "rank" if s.rank is not None else s.allocation,
                "factorize.kept": round(share, 4),
                "factorize.whole": sum(name not in ranks for name in known),
            },
            told=functools.partial(self._tell, ranks, known),
        )

    def _check(self, config: EncoderConfig, where: str) -> None:
        """What can be told before anything is computed."""
        refuse_quantized(config, "factorizing it", where)
        refuse_low_rank(config, "factorizing it", where, "start from its parent model")
        refuse_sparse(config, "factorizing it", where, "start from its parent model: the two cannot be combined")
        refuse_dropped_tokens(config, "factorizing its matrices", where)
        refuse_apart(config, where, "the factors would have to be shared as well", "factorize")

    # --- ranks ------------------------------------------------------------------------------------------------

    def _ranks(self, known: Mapping[str, Candidate], model: Model) -> Ranks:
        """Raises UserError for a target that the matrices cannot meet."""
        s = self.spec
        if s.rank is not None:
            return allocation.same_rank(known, s.rank)
        whole, least = sum(one.whole for one in known.values()), allocation.count_least_numbers(known)
        if s.ratio is not None:
            budget, key = int(s.ratio * whole), "ratio"
            said, smallest = f"{100 * s.ratio:g} % of the layers' parameters", f"{least / whole:.3g}"
        else:
            assert s.max_mb is not None
            numbers = sum(p.numel() for p in model.parameters())
            budget, key = int(s.max_mb * 1e6 / 4) - (numbers - whole), "max_mb"
            said, smallest = f"{s.max_mb:g} MB", f"{(numbers - whole + least) * 4 / 1e6:.3g}"
            if budget >= whole:
                raise UserError(
                    f"{said} is more than the model needs", where=key,
                    why=f"it needs {numbers * 4 / 1e6:.3g} MB", do="request less",
                )  # fmt: skip
        if budget < least:
            raise UserError(
                f"{said} cannot be met by low rank alone", where=key,
                why=f"with rank 1 everywhere the size is {smallest}",
                do="allow more, or cut layers, width, embeddings or the vocabulary first",
            )  # fmt: skip
        return (allocation.allocate_uniform if s.allocation == "uniform" else allocation.allocate_ranks)(known, budget)

    def _faster(self, ranks: Ranks, known: Mapping[str, Candidate], model: Model) -> Ranks:
        """Without the matrices whose thin products are not faster here. Raises UserError where none is."""
        plan = self.context.recipe.evaluation.latency
        tokens = plan.batch * min(plan.tokens, model.config.max_positions)
        slower = timing.find_slower_matrices(ranks, known, tokens, self.context.device, plan)
        kept = {name: rank for name, rank in ranks.items() if name not in slower}
        self.context.say(
            f"{len(slower)} of {len(ranks)} matrices are not factorized: their low-rank factors are not faster on "
            f"this device"
        )
        if not kept:
            raise UserError(
                "no matrix would be faster as low-rank factors on this device", where="only_faster",
                do="keep fewer parameters (ratio), or remove the option to reduce size only",
            )  # fmt: skip
        return kept

    def _tell(self, ranks: Ranks, known: Mapping[str, Candidate], log: TrackedRun) -> None:
        names = list(dict.fromkeys(name.split(".", 1)[1] for name in known))
        groups = list(dict.fromkeys(name.split(".", 1)[0] for name in known))
        columns = ("layer", *names)
        rows = [(group, *allocation.format_ranks(ranks, [f"{group}.{name}" for name in names])) for group in groups]
        self.context.show("rank of each matrix", columns, rows)
        log.table(self.context.folder / RANKS, columns, rows)
