"""Train a tokenizer on the corpus; its output is a folder that `AutoTokenizer` loads."""

from __future__ import annotations

from compress.data.tokenizer import Tokenizer
from compress.stages import Finished, Outline, Prepared, StageContext
from compress.tokenizer.spec import Spec


class Stage:
    """corpus → tokenizer files."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def outline(self, start: Outline | None, teacher: Outline | None, general: Outline | None) -> Outline | None:
        return start

    def plan(self) -> list[str]:
        s = self.spec
        case = "lower case" if s.lowercase else "cased"
        return [f"train a {s.model} tokenizer of {s.vocabulary_size:,} pieces, {case}"]

    def prepare(self) -> Prepared:
        s = self.spec
        corpus = self.context.corpus()
        tokenizer = Tokenizer.train(
            corpus.texts("train"),
            kind=s.model,
            vocabulary_size=s.vocabulary_size,
            lowercase=s.lowercase,
            min_frequency=s.min_frequency,
        )
        self.context.say(f"tokenizer: {tokenizer.vocabulary_size:,} pieces from {corpus.name}")
        return Prepared(finish=lambda: Finished(model=None, files=tokenizer.files()))
