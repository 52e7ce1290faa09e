"""Answer texts with a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli.options import Command, ModelName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@click.argument("texts", nargs=-1)
@click.option("--pair", "pairs", multiple=True, metavar="TEXT", help="Second text of a pair; once per TEXT.")
@click.option("--question", "questions", multiple=True, metavar="TEXT", help="For a model that answers questions.")
@click.option("--context", "contexts", multiple=True, metavar="TEXT", help="What it reads; one serves all questions.")
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Texts, one a line, or .jsonl or .csv with a column text (and text_pair); of questions, JSON objects; "
    "- is stdin.",
)
@click.option(
    "--no-answer-threshold",
    type=float,
    help='By how much "no answer" must beat the best answer; else the model\'s own.',
)
@click.option("--long-text", type=click.Choice(["cut", "chunk"]), help="Of classification; else as it was trained.")
@click.option("--embeddings", is_flag=True, help="Give the vector of each text instead of an answer.")
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
    """Answer TEXTS with MODEL: the label and its probability, or what its task answers with.

    \b
      compress predict runs/distilbert/student "the screen is not bad at all"
      compress predict runs/distilbert/student --file texts.txt --json
      compress predict runs/embedder --embeddings --file rows.jsonl --json
      compress predict runs/finetune/model --question "Who ran?" --context "Rollo ran to the sea."

    With --json: one JSON object per text and line (JSONL). A vector is pooled and post-processed as the folder says
    (modules.json, as sentence-transformers and compress analyze --save-embedder write it); else the mean of all tokens.
    """
    from compress.commands.predict import embed_texts, predict_texts
    from compress.errors import UserError

    if embeddings:
        others = {"--pair": pairs, "--question": questions, "--context": contexts, "--long-text": long_text}
        others["--no-answer-threshold"] = no_answer_threshold
        unread = next((flag for flag, value in others.items() if value not in (None, ())), None)
        if unread is not None:
            raise UserError("is for answers, not for vectors", where=unread, do="give each text on its own")
        embed_texts(model, texts, file, options)
        return
    asked = {"no_answer_threshold": no_answer_threshold, "long_text": long_text}
    settings = {name: value for name, value in asked.items() if value is not None}
    predict_texts(model, texts, pairs, file, options, questions=questions, contexts=contexts, settings=settings)
