"""Report of layer pruning: the table of layers, the CKA heatmap, and why each layer was dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compress.contracts import LayerChoice
from compress.errors import UserError
from compress.report.plots import heatmap
from compress.stages.prune_layers.study import LayerStudy, neighbours
from compress.stages.prune_layers.targets import DepthTrial, build_trial_rows
from compress.stages.shared.stage import StageContext
from compress.storage import atomic
from compress.tracking import TrackedRun
from evaluation.representation.hsic import UndefinedError

LAYERS, SETS, TRIED, CKA, PLOT = "layers.json", "layer-sets.json", "targets.json", "cka.json", "cka.svg"
"""Files in the stage's folder; the first lists every layer with its fate and the reason."""
FATE = "stays or goes"
"""The column of LAYERS that says which."""
MOST_SETS = 1000

Rows = tuple[tuple[str, ...], list[tuple[str, ...]]]


class Report:
    """Tells people, files and MLflow. kind: of the criterion.  tried: unit and depths of a target that was measured."""

    def __init__(
        self,
        kind: str,
        choice: LayerChoice,
        depth: int,
        study: LayerStudy,
        tried: tuple[str, Sequence[DepthTrial]] | None,
        context: StageContext,
    ) -> None:
        self.kind, self.choice, self.depth, self.tried, self.context = kind, choice, depth, tried, context
        self.cka: np.ma.MaskedArray | None = None
        self.low: np.ma.MaskedArray | None = None
        self.high: np.ma.MaskedArray | None = None
        try:
            found = study.cka()
            self.cka = found.matrix()
            self.low, self.high = found.interval()
        except (UserError, UndefinedError) as error:  # the criterion may do without
            context.say(f"no {'CKA' if self.cka is None else 'interval of CKA'}: {error}")

    def tell(self, log: TrackedRun) -> None:
        """Tables and plot into the stage's folder and the run; the short table to the terminal."""
        folder = self.context.folder
        log.table(folder / LAYERS, *self.layers())
        shown = self.layers()
        self.context.show(f"layers by {self.kind}", shown[0][:-1], [row[:-1] for row in shown[1]])
        if self.choice.of_sets:
            log.table(folder / SETS, *self.sets())
        if self.tried is not None:
            rows = build_trial_rows(self.tried[1], self.tried[0])
            log.table(folder / TRIED, *rows)
            self.context.show("depths tried", *rows)
        if self.cka is not None:
            names = ["emb", *map(str, range(self.depth))]
            log.table(folder / CKA, *self.matrix(names))
            title = "CKA of layer outputs, debiased, all tokens"
            atomic.write_text(folder / PLOT, heatmap(title, names, names, self.cka.filled(np.nan).tolist()))
            log.artifact(folder / PLOT)
            self.context.show(title, ("", *names), [(n, *_cells(r)) for n, r in zip(names, self.cka, strict=True)])
        log.metrics({f"prune_layers/score_layer_{layer}": value for layer, value in self.choice.scores.items()})
        log.tags({"compress.layers_kept": ", ".join(map(str, self.choice.keep))})

    def layers(self) -> Rows:
        """A row for each layer: score, CKA with the layer before, fate, reason."""
        score = self.choice.score or "score"
        columns = ("layer", score, "CKA with the layer before", "95 % interval", FATE, "why")
        near = [None] * self.depth if self.cka is None else neighbours(self.cka.filled(np.nan))
        gone = list(self.choice.reasons)
        rows = []
        for layer in range(self.depth):
            value = self.choice.scores.get(layer)
            fate = f"goes, {gone.index(layer) + 1} of {len(gone)}" if layer in gone else "stays"
            rows.append(
                (
                    str(layer),
                    "" if value is None else self.choice.form.format(value),
                    "" if near[layer] is None else _cell(near[layer]),
                    self._interval(layer),
                    fate,
                    self.choice.reasons.get(layer, ""),
                )
            )
        return columns, rows

    def sets(self) -> Rows:
        """The sets of layers that were scored, the best first."""
        ranked = sorted(self.choice.of_sets.items(), key=lambda item: item[1])[:MOST_SETS]
        form = self.choice.form
        return ("layers kept", self.choice.score), [(", ".join(map(str, s)), form.format(v)) for s, v in ranked]

    def matrix(self, names: Sequence[str]) -> Rows:
        """A row for each pair of outputs."""
        assert self.cka is not None
        columns = ("layer", "with layer", "CKA", "low", "high")
        rows = []
        for i, one in enumerate(names):
            for j, other in enumerate(names[: i + 1]):
                ends = [_cell(end[i, j]) if end is not None else "" for end in (self.low, self.high)]
                rows.append((one, other, _cell(self.cka[i, j]), *ends))
        return columns, rows

    def _interval(self, layer: int) -> str:
        if self.low is None or self.high is None or self.low[layer, layer + 1] is np.ma.masked:
            return ""
        return f"{self.low[layer, layer + 1]:.3f} to {self.high[layer, layer + 1]:.3f}"


def _cells(row: np.ma.MaskedArray) -> list[str]:
    return [_cell(value) for value in row]


def _cell(value: object) -> str:
    """A figure; a word where there is none."""
    if value is np.ma.masked or not np.isfinite(float(value)):  # pyright: ignore[reportArgumentType]
        return "undefined"
    return f"{float(value):.3f}"  # pyright: ignore[reportArgumentType]
