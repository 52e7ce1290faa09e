"""Report of width pruning: heads and neurons kept per layer, change of the outputs, and the new cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compress.contracts import WidthScores
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.reshape.cut import COUNTED, KeptUnits, units
from compress.stages.prune_width.search import curves_of
from compress.stages.shared.divergence import OF_CLASSES, DistanceName
from compress.stages.shared.stage import StageContext
from compress.storage import atomic
from compress.tracking import TrackedRun

LAYERS, KEPT, TRIED = "widths.json", "kept.json", "targets.json"
"""Files in the stage's folder: a row for each layer; the indices that stay; the sizes tried for a latency."""


@dataclass(frozen=True)
class SizeTrial:
    """A size that was tried for a latency. planned, ms: of the table, and measured.  whole: of the model as it was."""

    parameters: int
    planned: float
    ms: float
    whole: float
    met: bool


@dataclass(frozen=True)
class Report:
    """Tells people, files and MLflow.

    before, after: the shapes.  kept: None where only the hidden states became narrower.  moved: how far the answers are
    from those of the model as it was, on so many validation rows, before recovery.  operations: of the model before and
    after.  distance: what `moved` is called.
    """

    kind: str
    before: EncoderConfig
    after: EncoderConfig
    kept: KeptUnits | None
    scores: WidthScores | None
    moved: float
    rows: int
    operations: tuple[float, float]
    tried: Sequence[SizeTrial]
    context: StageContext
    distance: DistanceName = OF_CLASSES

    def tell(self, log: TrackedRun) -> None:
        """Tables into the stage's folder and the run; the short ones to the terminal."""
        c = self.context
        columns, rows = self.layers()
        log.table(c.folder / LAYERS, columns, rows)
        c.show(f"widths by {self.kind}", columns, rows)
        if self.kept is not None:
            atomic.write_json(c.folder / KEPT, {"heads": self.kept.heads, "neurons": self.kept.neurons})
            log.artifact(c.folder / KEPT)
        if self.tried:
            told = [
                (
                    f"{t.parameters / 1e6:.2f}",
                    f"{t.planned:.2f}",
                    f"{t.ms:.2f}",
                    f"{t.whole:.2f}",
                    "yes" if t.met else "no",
                )
                for t in self.tried
            ]
            columns = ("M parameters", "planned ms", "measured ms", "ms before", "within the target")
            log.table(c.folder / TRIED, columns, told)
            c.show("sizes tried", columns, told)
        for line in self.sentences():
            c.say(line)
        log.metrics(
            {
                f"prune_width/{self.distance.key}_before_recovery": self.moved,
                "prune_width/parameters_kept": self.after.count_parameters() / self.before.count_parameters(),
                "prune_width/operations_kept": self.operations[1] / self.operations[0],
            }
        )

    def sentences(self) -> list[str]:
        """What became of the model, in words."""
        old, new = self.before, self.after
        parts = []
        if old.hidden != new.hidden:
            parts.append(f"hidden {old.hidden} became {new.hidden}")
        first, last = self.operations
        parts.append(f"{old.count_parameters():,} parameters became {new.count_parameters():,} (without task heads)")
        parts.append(f"operations {first / 1e9:.3g} G became {last / 1e9:.3g} G")
        return [
            ", ".join(parts),
            f"before recovery training: {self.distance.describe(self.moved, 'the parent')}, on {self.rows:,} "
            "validation rows",
        ]

    def layers(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """A row for each layer: heads and neurons before and after, and the share of the scores that went."""
        columns = (
            "layer",
            "heads",
            "of",
            "head width",
            "feed-forward",
            "of",
            "share of head scores lost",
            "of neurons'",
        )
        lost = self._lost()
        rows = []
        for layer, (old, new) in enumerate(zip(self.before.layers, self.after.layers, strict=True)):
            rows.append(
                (
                    str(layer),
                    str(new.heads),
                    str(old.heads),
                    str(new.head_width),
                    str(new.feed_forward),
                    str(old.feed_forward),
                    *(f"{100 * x:.1f} %" for x in lost[layer]),
                )
            )
        return columns, rows

    def _lost(self) -> list[tuple[float, float]]:
        found = [[0.0, 0.0] for _ in self.before.layers]
        if self.scores is not None:
            curves = iter(curves_of(self.scores))
            for place, (part, name) in enumerate(COUNTED.items()):
                for unit in units(self.before, part):
                    curve = next(curves)
                    for layer in unit:
                        left = curve[getattr(self.after.layers[layer], name)]
                        found[layer][place] = float(left / curve[0]) if curve[0] else 0.0
        return [(a, b) for a, b in found]
