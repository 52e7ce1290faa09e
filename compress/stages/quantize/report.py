"""Report of quantization: the sensitivity of each module, and which modules fell back to float."""

from __future__ import annotations

import re
from collections.abc import Sequence

from compress.encoder.integers.fake_quantized import integer_megabytes
from compress.encoder.modules.model import Model
from compress.report.plots import heatmap
from compress.stages.quantize.sensitivity import Damage, FallbackTrial
from compress.stages.shared.stage import StageContext
from compress.storage import atomic
from compress.tracking import TrackedRun

MODULES, TRIED, PLOT = "sensitivity.json", "fallen-back.json", "sensitivity.svg"
"""Files in the stage's folder; the first lists every quantized module."""
SHOWN = 8
"""Rows of the table in the terminal."""
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)")


class Report:
    """Tells people, files and MLflow. names: of all modules that were quantized at first.  made: what became of it.

    to: what modules fall back to.
    """

    def __init__(
        self,
        names: Sequence[str],
        damage: Damage | None,
        back: frozenset[str],
        tried: Sequence[FallbackTrial],
        context: StageContext,
        made: Model,
        to: str,
    ) -> None:
        self.names, self.damage, self.back, self.tried, self.context = names, damage, back, tried, context
        self.to = to
        self.megabytes = integer_megabytes(made)

    def tell(self, log: TrackedRun) -> None:
        """Tables and plot into the stage's folder and the run; the short table to the terminal."""
        c = self.context
        log.metrics({"quantize/integer_mb": self.megabytes})
        if self.tried:
            told = [(str(t.count), f"{t.points:.2f}", "yes" if t.met else "no") for t in self.tried]
            columns = ("modules fallen back", "points lost", "within the bound")
            log.table(c.folder / TRIED, columns, told)
            c.show(f"modules that fall back to {self.to}", columns, told)
        if self.damage is None:
            return
        columns, rows = self._modules(self.damage)
        log.table(c.folder / MODULES, columns, rows)
        more = "" if len(rows) <= SHOWN else f", the worst {SHOWN} of {len(rows)}"
        c.show(f"sensitivity of each module quantized alone{more}", columns, rows[:SHOWN])
        together, distance = self.damage.together, self.damage.distance
        c.say(f"all modules quantized: {distance.describe(together, 'the float model')}")
        name = f"quantize/{distance.key}"
        log.metrics({name: together, f"{name}_worst_module": max(self.damage.alone.values())})
        self._draw(self.damage, log)

    def _modules(self, damage: Damage) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        columns = ("module", f"{damage.distance.name} to float, alone", "")
        fates = {name: f"back to {self.to}" if name in self.back else "" for name in self.names}
        return columns, [(name, f"{damage.alone[name]:.2e}", fates[name]) for name in damage.worst_first]

    def _draw(self, damage: Damage, log: TrackedRun) -> None:
        """Layers against their matrices, as shares of the worst."""
        found = {(int(m[1]), m[2]): damage.alone[name] for name in self.names if (m := _LAYER.fullmatch(name))}
        if not found:
            return
        layers, parts = sorted({layer for layer, _ in found}), list(dict.fromkeys(part for _, part in found))
        worst = max(found.values()) or 1.0
        values = [[found.get((layer, part), float("nan")) / worst for part in parts] for layer in layers]
        title = f"{damage.distance.name} of each matrix alone, 1 = {worst:.2e} {damage.distance.unit}".rstrip()
        parts = [part.rpartition(".")[2] for part in parts]
        atomic.write_text(self.context.folder / PLOT, heatmap(title, [*map(str, layers)], parts, values))
        log.artifact(self.context.folder / PLOT)
