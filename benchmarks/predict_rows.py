"""Many rows on a CPU: how they are divided into batches, and all of `compress predict --file` beside a pipeline.

    python benchmarks/predict_rows.py FLOAT-FOLDER FOLDER [...] --data rows.jsonl [--rows 1024] [--threads 1]

FLOAT-FOLDER is of a stock class, for `transformers.pipeline`; the others have a model.onnx. Rows are evenly spaced ones
of a file of JSON lines with a column text. Two comparisons, timed in turns:

- batches: encoded rows through one session, in padded batches of 32 as they come, one by one, sorted in batches of
  4,096 tokens, and as `Predictor.batches` divides them; the first also through transformers (SDPA, float32).
  --runtimes: which are compared.
- rows: read, tokenize, answer, write, by `transformers.pipeline` in its best batch size (of --sizes, found first on an
  eighth of the rows), and by `compress predict --file` of each folder. Models are loaded before.

--only workers: whole commands by the last folder's model, in turns: `predict --file --json`, and `--output` with
`--workers 2`. The cost of a row is the difference between --rows and a quarter of them.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import side_by_side as s
import torch
import transformers
from commands import describe_prices, price_rows

from compress.commands.predict import write_answers
from compress.contracts import Batch, RunOptions
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import Examples, collate
from compress.modelfolder.names import label_models
from compress.onnx.session import pad_batch
from compress.predict.predictor import MAX_TOKENS, Predictor
from compress.predict.rows.answers import PredictionAnswerer
from compress.predict.rows.reading import read_rows


def main() -> None:
    parser = s.arguments(__doc__ or "", rounds=5)
    parser.add_argument("float", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--runtimes", nargs="+", default=["onnxruntime"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--only", choices=["batches", "rows", "workers"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.only == "workers":
        return print(compare_workers(args))
    lines = args.data.read_text(encoding="utf-8").splitlines()
    texts = [
        json.loads(lines[i])["text"] for i in np.linspace(0, len(lines) - 1, min(args.rows, len(lines))).astype(int)
    ]
    models = {
        f"{name} {runtime}": Predictor(folder, runtime=runtime)
        for name, folder in zip(label_models(args.folders), args.folders, strict=True)
        for runtime in args.runtimes
    }
    results = []
    if args.only != "rows":
        results += [compare_batches(args, name, predictor, texts) for name, predictor in models.items()]
    if args.only != "batches":
        results.append(compare_rows(args, models, texts))
    s.tell(args, results)


def compare_batches(args, name: str, predictor: Predictor, texts: list[str]) -> dict:
    """Every way on the same rows, after one untimed turn."""
    examples = predictor.task.encode_texts(predictor.tokenizer, texts, max_length=predictor.max_length)
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(args.float, attn_implementation="sdpa")
    kept = {
        "padded batches of 32": chunked(examples, 32),
        "one by one": chunked(examples, 1),
        f"sorted, {MAX_TOKENS} tokens": list(evaluation_batches(examples, MAX_TOKENS)),
        "as predict divides them": list(predictor.batches(examples)),
    }
    padded = [
        {name: torch.from_numpy(x) for name, x in pad_batch(batch)[1].items()} for batch in kept["padded batches of 32"]
    ]
    ways: dict[str, s.Call] = {"transformers, padded batches of 32": lambda _: [answer(plain, b) for b in padded]}
    ways |= {way: lambda _, held=held: [predictor(b) for b in held] for way, held in kept.items()}
    padding = ", ".join(f"{way} {sum(b.rows * b.max_length for b in held)}" for way, held in kept.items())
    notes = f"{len(examples)} rows, {len(examples.ids)} tokens; with padding: {padding}"
    return {"case": f"batches, {name}", "figures": s.in_turns(ways, args.rounds, args.clock), "notes": notes}


def compare_workers(args) -> str:
    """What a row costs by one process and by two workers; both have work with the fewer rows too."""
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as scratch, args.data.open(encoding="utf-8") as stream:
        texts = [json.loads(line)["text"] for line in itertools.islice(stream, args.rows)]
        few, many = len(texts) // 4, len(texts)
        for rows in (few, many):
            text = "".join(f"{text}\n" for text in texts[:rows])
            (Path(scratch) / f"{rows}.txt").write_text(text, encoding="utf-8")

        def plain(rows: int) -> list[str]:
            file = Path(scratch) / f"{rows}.txt"
            return ["predict", str(args.folders[-1]), "--file", str(file), "--threads", str(args.threads), "--quiet"]

        def divided(rows: int) -> list[str]:
            output = Path(scratch) / str(next(numbers))
            return [*plain(rows), "--output", str(output), "--shard-rows", str(few // 2), "--workers", "2"]

        ways = {"one process": lambda rows: [*plain(rows), "--json"], "two workers": divided}
        return describe_prices(price_rows(ways, few, many, args.rounds))


def chunked(examples: Examples, rows: int) -> list[Batch]:
    """Consecutive rows, as they come."""
    order = np.arange(len(examples))
    return [collate(examples, order[i : i + rows]) for i in range(0, len(order), rows)]


@torch.inference_mode()
def answer(model, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**batch).logits


def compare_rows(args, models: dict[str, Predictor], texts: list[str]) -> dict:
    """From a file of texts to a text of answers."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(args.float)
    pipe = transformers.pipeline(
        "text-classification",
        model=model,
        tokenizer=transformers.AutoTokenizer.from_pretrained(args.float),
        device="cpu",
    )
    with tempfile.TemporaryDirectory() as scratch:
        file, part = Path(scratch) / "rows.txt", Path(scratch) / "part.txt"
        file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        part.write_text("".join(f"{text}\n" for text in texts[::8]), encoding="utf-8")
        tried = s.in_turns({str(n): lambda _, n=n: theirs(pipe, part, n) for n in args.sizes}, 2, args.clock, warmup=0)
        best = int(min(tried, key=lambda figure: figure.milliseconds).way)
        ways: dict[str, s.Call] = {f"pipeline, batches of {best}": lambda _: theirs(pipe, file, best)}
        ways |= {f"predict, {name}": lambda _, p=p: ours(p, file) for name, p in models.items()}
        expected, found = theirs(pipe, file, best), ours(next(iter(models.values())), file)
        same = np.mean([a.split("\t")[0] == b.split("\t")[0] for a, b in zip(expected, found, strict=True)])
        figures = s.in_turns(ways, args.rounds, args.clock, warmup=0)
    sizes = ", ".join(f"{figure.way}: {figure.milliseconds:.0f} ms" for figure in tried)
    notes = (
        f"{len(texts)} rows, {100 * same:.1f} % of labels as the pipeline's; an eighth of them in batches of {sizes}"
    )
    return {"case": "rows, end to end", "figures": figures, "notes": notes}


def theirs(pipe, file: Path, size: int) -> list[str]:
    """A generator, as its documentation advises."""

    def rows() -> Iterator[str]:
        with open(file, encoding="utf-8") as stream:
            yield from (line.rstrip("\n") for line in stream)

    return [f"{found['label']}\t{found['score']:.4f}" for found in pipe(rows(), batch_size=size, truncation=True)]


def ours(predictor: Predictor, file: Path) -> list[str]:
    """What the command writes."""
    with contextlib.redirect_stdout(io.StringIO()) as written:
        answerer = PredictionAnswerer(predictor)
        write_answers(answerer, read_rows(file, answerer.columns), file, RunOptions(quiet=True))
    return written.getvalue().splitlines()


if __name__ == "__main__":
    main()
