"""Recipe keys of the row filter: which of the rows that only the teacher labels are trained on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from compress.contracts import Frozen

STUDENT, TEACHERS = "student", "teachers"
"""Values of `disagreement` that name no model folder."""


class RowFilterSpec(Frozen):
    """Row filter: which of the rows that only the teacher labels (unlabelled text and copies) are trained on. The
    teacher predicts all of them once, before training."""

    min_confidence: float | None = Field(default=None, gt=0, lt=1)
    """Leave out rows on which the teacher's largest probability is below this: its label may be wrong. Of tags and of
    several labels per row, the least certain one counts."""
    max_confidence: float | None = Field(default=None, gt=0, lt=1)
    """Leave out rows on which it is above this, such as 0.999: they teach little."""
    balance: Literal["even"] | Annotated[int, Field(gt=0, le=10**12)] | None = None
    """Maximum number of rows of each class that the teacher predicts. even: the even share of the rows that are kept,
    their number divided by the number of classes."""
    disagreement: Annotated[str, Field(min_length=1)] | None = None
    """Keep the rows on which the teacher and another model disagree most: other predictions first, then by KL
    divergence. student: the student as initialized.  teachers: the single teachers of a recipe with several, against
    all together.  Or a model folder, such as a student trained on the labels."""
    keep: float | None = Field(default=None, gt=0, le=1)
    """With disagreement: share of the rows to keep. Default: 0.5, or `data.unlabelled_rows` rows where that is set."""

    @model_validator(mode="after")
    def _complete(self) -> RowFilterSpec:
        low, high = self.min_confidence, self.max_confidence
        if low is not None and high is not None and low >= high:
            raise ValueError(f"min_confidence {low:g} is not below max_confidence {high:g}, so no row would be left")
        if self.keep is not None and self.disagreement is None:
            raise ValueError("keep has no effect without disagreement; set disagreement, or remove keep")
        if all(getattr(self, name) is None for name in type(self).model_fields):
            raise ValueError("nothing is filtered; set min_confidence, max_confidence, balance or disagreement")
        return self

    def names_model(self) -> str | None:
        """The model folder that the teacher is compared with."""
        return None if self.disagreement in (None, STUDENT, TEACHERS) else self.disagreement
