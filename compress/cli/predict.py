"""Predict with a model folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compress.cli._groups import worker_options
from compress.cli._help import Command, Option
from compress.cli._types import InputPlace, IntRange, ModelName
from compress.cli.options import shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions
    from compress.data.reading.remote import Place

_WORKERS, _ON = worker_options(
    "--output: predict in N processes at once, which share the CPUs; auto: one for each CPU (default: in this "
    "process).",
    "--output: predict on a Ray cluster (extra ray); ray: on this machine, or on the cluster of RAY_ADDRESS. "
    "With --workers: in at most N processes.",
    section="output",
)


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@click.argument("texts", nargs=-1)
@click.option("--pair", "pairs", multiple=True, metavar="TEXT", help="Second text of a pair; once for each TEXT.")
@click.option(
    "--query", metavar="TEXT", help="Rerankers and embedding models: rank TEXTS, or the rows of --file, for this query."
)
@click.option("--top", type=IntRange(1), metavar="N", help="--query: print the best N only (default: all).")
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
    type=InputPlace(),
    metavar="FILE",
    help="File with one text per line, or .jsonl, .csv or .parquet with a column of text (and of second texts); for "
    "questions, JSON objects; a folder of such files; s3://BUCKET/KEY for either; - reads stdin and answers lines as "
    "they come.",
)
@click.option("--text-column", metavar="NAME", help="--file: column of the text (default: by its usual names).")
@click.option("--text-pair-column", metavar="NAME", help="--file: column of the second text of a pair.")
@click.option(
    "--keep-column",
    "keep_columns",
    multiple=True,
    metavar="NAME[=AS]",
    help="--file with --json or --output: a column that the predictions repeat, under the name AS if given; "
    "repeatable. A column called id is always kept.",
)
@click.option(
    "--bad-rows",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="--file: write rows that cannot be read to this file, with file, line and reason, and continue (default: the "
    "first one is an error).",
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
@click.option(
    "--prompt",
    metavar="NAME",
    help="Embeddings: name of the folder's prompt that comes before each text, such as query (default: its default "
    "prompt).",
)
@click.option("--embeddings", is_flag=True, help="Return the embedding of each text instead of a prediction.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="--file: write the predictions as JSON lines to a new folder, in shards, with a manifest.",
)
@click.option(
    "--resume",
    is_flag=True,
    cls=Option,
    section="output",
    help="--output: make only the shards that are missing or damaged in the folder.",
)
@_WORKERS
@_ON
@click.option(
    "--shard-rows",
    type=IntRange(1, 1 << 30),
    metavar="N",
    help="--output: rows of a shard (default: 65536). With a multiple of 4096, the predictions are byte for byte those "
    "of --json without --output.",
)
@click.option(
    "--join",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="--output: also write all predictions to this file, in the order of the rows. A name that ends in .npy gets "
    "vectors as a float32 array (embedding models, or --embeddings), a row for each answered text.",
)
@shared("compute", "any_runtime")
def command(
    options: RunOptions,
    model: str,
    texts: tuple[str, ...],
    pairs: tuple[str, ...],
    query: str | None,
    top: int | None,
    questions: tuple[str, ...],
    contexts: tuple[str, ...],
    file: Place | None,
    text_column: str | None,
    text_pair_column: str | None,
    keep_columns: tuple[str, ...],
    bad_rows: Path | None,
    no_answer_threshold: float | None,
    long_text: str | None,
    prompt: str | None,
    embeddings: bool,
    shard_rows: int | None,
    join: Path | None,
    **where: Any,
) -> None:
    """Predict TEXTS with MODEL: label and probability, or the output of its task.

    \b
      compress predict runs/distilbert/student "the screen is not bad at all"
      compress predict runs/distilbert/student --file texts.txt --json
      compress predict runs/embedder --embeddings --file rows.jsonl --json
      compress predict runs/finetune/model --question "Who ran?" --context "Rollo ran to the sea."
      compress predict runs/reranker --query "who ran to the sea" --file documents.txt --top 10
      compress predict runs/distilbert/student --file FOLDER --output answers --workers 4 --bad-rows bad.jsonl

    With --json: one JSON object per line and text (JSONL). In a pipe, a line waits at most 50 ms for others to be
    answered with it. Embeddings are pooled and post-processed as the folder's
    modules.json specifies (written by sentence-transformers or compress analyze --save-embedder); else mean pooling.
    Each text is read after the folder's default prompt, or that of --prompt; --query reads the query and the documents
    after the prompts that have these names.
    """
    from compress.cli._flags import refuse_flags
    from compress.commands.predict import predict_texts, rank_texts
    from compress.commands.predict_shards import ShardOptions, predict_shards
    from compress.data.reading.files import SUFFIXES
    from compress.errors import UserError, require_short_path
    from compress.modelfolder.resolve import resolve
    from compress.predict.rows.answers import ModelRequest
    from compress.predict.rows.plan import SHARD_ROWS

    asked = {"no_answer_threshold": no_answer_threshold, "long_text": long_text}
    settings = {name: value for name, value in asked.items() if value is not None}
    if embeddings:
        others = {
            "--pair": pairs, "--question": questions, "--context": contexts,
            "--no-answer-threshold": no_answer_threshold, "--long-text": long_text,
        }  # fmt: skip
        refuse_flags(others, "does not apply to embeddings", "remove it, or remove --embeddings")
    if query is None:
        refuse_flags({"--top": top}, "has no effect without --query", "add --query TEXT")
    else:
        others = {
            "--pair": pairs, "--question": questions, "--context": contexts, "--embeddings": embeddings,
            "--text-pair-column": text_pair_column, "--bad-rows": bad_rows, "--output": where["output"],
            "--prompt": prompt,
        }  # fmt: skip
        refuse_flags(others, "cannot be combined with --query", "remove it")
    output: Path | None = where["output"]
    if file is None:
        of_rows = {
            "--text-column": text_column, "--text-pair-column": text_pair_column, "--keep-column": keep_columns,
            "--bad-rows": bad_rows,
        }  # fmt: skip
        refuse_flags({**of_rows, "--output": output}, "is for rows of a file", "add --file FILE")
    if output is None and not options.json:
        refuse_flags({"--keep-column": keep_columns}, "has no effect without --json or --output", "add one of them")
    if output is None:
        lonely = {**{f"--{name}": value for name, value in where.items()}, "--shard-rows": shard_rows, "--join": join}
        refuse_flags(lonely, "has no effect without --output", "add --output FOLDER")
    else:
        require_short_path(output, "--output")
        if output.suffix.lower() in SUFFIXES:
            raise UserError(
                "the predictions are written to a folder, in shards, and this is the name of a file",
                where=f"--output {output}",
                do=f"for one file: --output {output.with_suffix('')} --join {output.with_suffix('.jsonl')}",
            )
        others = {"TEXTS": texts, "--question": questions, "--pair": pairs}
        refuse_flags(others, "cannot be combined with --output", "remove it")
    request = ModelRequest(
        resolve(model), options.device, options.precision, options.runtime, embeddings=embeddings, settings=settings,
        text_column=text_column, text_pair_column=text_pair_column, prompt=prompt, kept=_name_columns(keep_columns),
    )  # fmt: skip
    if output is not None and file is not None:
        shards = ShardOptions(shard_rows or SHARD_ROWS, join, bad_rows)
        predict_shards(request, file, shards, replace(options, **where))
        return
    if query is not None:
        rank_texts(request, query, texts, file, options, top)
        return
    predict_texts(request, texts, pairs, file, options, questions=questions, contexts=contexts, bad_rows=bad_rows)


def _name_columns(asked: tuple[str, ...]) -> dict[str, str]:
    """Column → the name that the predictions have it under. Raises UserError for two columns of one name."""
    from compress.errors import UserError

    found: dict[str, str] = {}
    for text in asked:
        column, _, name = text.partition("=")
        if not column or (name or column) in found.values() or column in found:
            what = f"duplicate name '{name or column}'" if column else "the name of the column is missing"
            raise UserError(what, where=f"--keep-column {text}", do="write NAME, or NAME=AS")
        found[column] = name or column
    return found
