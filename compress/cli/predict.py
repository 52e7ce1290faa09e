"""Predict with a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli.options import Command, InputFile, ModelName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@click.argument("texts", nargs=-1)
@click.option("--pair", "pairs", multiple=True, metavar="TEXT", help="Second text of a pair; once for each TEXT.")
@click.option(
    "--question",
    "questions",
    multiple=True,
    metavar="TEXT",
    help="Question, for a question-answering model; repeatable.",
)
@click.option(
    "--context",
    "contexts",
    multiple=True,
    metavar="TEXT",
    help="Context of the question; a single one is used for all questions.",
)
@click.option(
    "--file",
    type=InputFile(),
    metavar="FILE",
    help="File with one text per line, or .jsonl or .csv with a column text (and text_pair); for questions, JSON "
    "objects; - reads stdin and answers lines as they come.",
)
@click.option(
    "--no-answer-threshold",
    type=float,
    help='Question answering: margin by which "no answer" must exceed the best span (default: the model\'s).',
)
@click.option(
    "--long-text",
    type=click.Choice(["cut", "chunk"]),
    help="Classification: truncate longer texts (cut) or read them in chunks (default: as trained).",
)
@click.option("--embeddings", is_flag=True, help="Return the embedding of each text instead of a prediction.")
@shared("compute", "any_runtime")
def command(
    options: RunOptions,
    model: str,
    texts: tuple[str, ...],
    pairs: tuple[str, ...],
    questions: tuple[str, ...],
    contexts: tuple[str, ...],
    file: Path | None,
    no_answer_threshold: float | None,
    long_text: str | None,
    embeddings: bool,
) -> None:
    """Predict TEXTS with MODEL: label and probability, or the output of its task.

    \b
      compress predict runs/distilbert/student "the screen is not bad at all"
      compress predict runs/distilbert/student --file texts.txt --json
      compress predict runs/embedder --embeddings --file rows.jsonl --json
      compress predict runs/finetune/model --question "Who ran?" --context "Rollo ran to the sea."

    With --json: one JSON object per line and text (JSONL). In a pipe, a line waits at most 50 ms for others to be
    answered with it. Embeddings are pooled and post-processed as the folder's
    modules.json specifies (written by sentence-transformers or compress analyze --save-embedder); else mean pooling.
    """
    from compress.commands.predict import embed_texts, predict_texts
    from compress.errors import UserError

    if embeddings:
        others = {"--pair": pairs, "--question": questions, "--context": contexts, "--long-text": long_text}
        others["--no-answer-threshold"] = no_answer_threshold
        unread = next((flag for flag, value in others.items() if value not in (None, ())), None)
        if unread is not None:
            raise UserError("does not apply to embeddings", where=unread, do="remove it, or remove --embeddings")
        embed_texts(model, texts, file, options)
        return
    asked = {"no_answer_threshold": no_answer_threshold, "long_text": long_text}
    settings = {name: value for name, value in asked.items() if value is not None}
    predict_texts(model, texts, pairs, file, options, questions=questions, contexts=contexts, settings=settings)
