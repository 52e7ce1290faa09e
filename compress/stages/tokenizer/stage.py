"""Train a tokenizer on the corpus; its output is a folder that `AutoTokenizer` loads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from compress.contracts import Progress
from compress.data.reading.corpus import Corpus
from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokens import LONGEST
from compress.stages.shared.model_shape import ModelShape
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput
from compress.stages.tokenizer.spec import Spec

SAMPLE = 2000  # held-out texts that are looked at for unknown pieces


class Stage:
    """corpus → tokenizer files."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        return start

    def plan(self) -> list[str]:
        s = self.spec
        case = "lower case" if s.lowercase else "cased"
        return [f"train a {s.model} tokenizer of {s.vocabulary_size:,} tokens, {case}"]

    def prepare(self) -> PreparedStage:
        """Train the tokenizer here: there is no model, and nothing is left for the training loop.

        Raises UserError for a corpus that cannot be read or gives no vocabulary."""
        s = self.spec
        corpus = self.context.corpus()
        with self.context.workshop.progress("reading the corpus", None, "texts") as progress:
            tokenizer = Tokenizer.train(
                self._read(corpus, progress),
                kind=s.model,
                vocabulary_size=s.vocabulary_size,
                lowercase=s.lowercase,
                min_frequency=s.min_frequency,
                tokenize_chinese_chars=s.tokenize_chinese_chars,
            )
        unknown = _unknown(tokenizer, list(islice(corpus.texts("validation"), SAMPLE)))
        known = f"; {100 * unknown:.2f} % of the held-out text is [UNK] to it" if unknown else ""
        self.context.say(f"tokenizer: {tokenizer.vocabulary_size:,} tokens from {corpus.name}{known}")
        return PreparedStage(finish=lambda: StageOutput(model=None, files=tokenizer.files()))

    def _read(self, corpus: Corpus, progress: Progress) -> Iterator[str]:
        """The training texts; the trainer reads all before it begins, and does not report how far it is."""
        count = 0
        for count, text in enumerate(corpus.texts("train"), 1):
            yield text
            progress.update(count)
        self.context.say(f"learning a vocabulary of {self.spec.vocabulary_size:,} tokens from {count:,} texts")


def _unknown(tokenizer: Tokenizer, texts: list[str]) -> float:
    """Share of the pieces of some texts that the vocabulary does not know."""
    ids = tokenizer.encode_plain([text[:LONGEST] for text in texts], words=False).ids
    return float((ids == tokenizer.unk_id).mean()) if len(ids) else 0.0
