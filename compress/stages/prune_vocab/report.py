"""Report of vocabulary pruning: sizes, and the effect on held-out text."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from compress.report.rows import format_figure, title
from compress.stages.prune_vocab.selection import Choice
from compress.stages.prune_vocab.usage import Loss
from compress.stages.shared.stage import StageContext
from compress.tracking import TrackedRun

FILE = "vocabulary.json"
"""Table in the stage's folder."""
FOREIGN_UNKNOWN, FOREIGN_LOST = 0.01, 0.95
"""Of counted pieces, unknown ones above which, and of held-out pieces, kept ones below which a text is not what the
model or the data are written in."""

_log = logging.getLogger("compress.stages.prune_vocab")


class Report:
    """Tells people, files and MLflow. megabytes: of the word table, before and after.  validation: the main metric
    before and after, by name; empty without labelled data."""

    def __init__(
        self,
        choice: Choice,
        lost: Loss,
        megabytes: tuple[float, float],
        validation: Mapping[str, tuple[float, float]],
        context: StageContext,
    ) -> None:
        self.choice, self.lost, self.megabytes = choice, lost, megabytes
        self.validation, self.context = validation, context

    def tell(self, log: TrackedRun) -> None:
        """The table into the stage's folder, the run and the terminal."""
        columns, rows = self._rows()
        self.context.show("effect of the smaller vocabulary", columns, rows)
        log.table(self.context.folder / FILE, columns, rows)
        lost = self.lost
        figures = {
            "rows": len(self.choice.kept),
            "coverage_pct": 100 * self.choice.coverage,
            "held_out_coverage_pct": 100 * lost.coverage,
            "held_out_changed_pct": 100 * lost.changed,
            "held_out_unknown_before": lost.unknown[0],
            "held_out_unknown": lost.unknown[1],
            "held_out_pieces_before": lost.length[0],
            "held_out_pieces": lost.length[1],
        }
        for name, (before, after) in self.validation.items():
            figures |= {f"validation_{name}_before": before, f"validation_{name}": after}
        log.metrics({f"prune_vocab/{name}": float(value) for name, value in figures.items()})

    def _rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        c, lost = self.choice, self.lost
        old, new = self.megabytes
        texts = f"{lost.texts:,} held-out texts"
        rows = [
            ("rows of the word table", f"{c.rows:,}", f"{len(c.kept):,}"),
            ("always kept", "", f"{c.least:,}"),
            ("word table, MB", f"{old:.2f}", f"{new:.2f}"),
            ("tokens of the counted text kept", "", _percent(c.coverage)),
            (f"tokens of {texts} kept", "", _percent(lost.coverage)),
            ("texts tokenized differently", "", _percent(lost.changed)),
            ("unknown tokens", *(f"{n:,}" for n in lost.unknown)),
            ("texts with an unknown token", *(f"{n:,}" for n in lost.affected)),
            ("tokens per text, mean", *(f"{n:.2f}" for n in lost.length)),
        ]
        for name, values in self.validation.items():
            rows.append((f"{title(name)} on validation", *(format_figure(name, value) for value in values)))
        return ("", "before", "after"), rows

    def warn(self, unknown: float) -> None:
        """Say what must not be missed. unknown: share of the counted text's pieces."""
        if unknown > FOREIGN_UNKNOWN:
            _log.warning(
                "%s of the counted text's tokens are unknown to the tokenizer: the text is probably in a language that "
                "the model does not support",
                _percent(unknown),
            )
        if self.lost.coverage < FOREIGN_LOST:
            _log.warning(
                "only %s of the held-out text's tokens are kept and %s of its texts are tokenized differently: the "
                "counted text is too small or in another language",
                _percent(self.lost.coverage),
                _percent(self.lost.changed),
            )
        if self.lost.affected[1] > self.lost.affected[0]:
            more = self.lost.affected[1] - self.lost.affected[0]
            _log.warning(
                "%d held-out texts have an unknown token that had none before; keep more characters or tokens", more
            )


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
