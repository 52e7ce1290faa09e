"""A task whose metrics depend on what its rows hold: the form of the rows names them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from compress.data import task
from compress.data.tables.table import Rows
from compress.errors import UserError, did_you_mean, printable


class FormTask(task.Task):
    """of_form: what rows of each form are scored by, the usual main metric first."""

    of_form: ClassVar[Mapping[str, tuple[str, ...]]]

    @abstractmethod
    def form(self, rows: Rows) -> str:
        """What the rows hold: a key of `of_form`."""

    def metric_of(self, rows: Rows) -> str:
        """Raises UserError for a metric that such rows have no figure of."""
        able = self.of_form[self.form(rows)]
        wanted = self._wanted()
        if wanted is not None and wanted in self.metrics and wanted not in able:
            do = "use " + " or ".join(able)
            raise UserError(f"{wanted} has no figure on {self.form(rows)}", where="data.metric", do=do)
        return wanted or able[0]

    def choose_metrics(self, names: Sequence[str]) -> tuple[str, ...]:
        wanted = self._wanted()
        if wanted is None:
            return self.metrics
        if wanted not in self.metrics:
            what = f"{self.kind} has no metric '{printable(str(self.metric), 60)}'"
            raise UserError(what, where="data.metric", do=did_you_mean(str(wanted), self.metrics))
        return (wanted, *(name for name in self.metrics if name != wanted))

    def _wanted(self) -> str | None:
        """The metric that a person chose: ndcg@10 is ndcg_at_10."""
        return self.metric.replace("@", "_at_") if isinstance(self.metric, str) else self.metric
