"""What a model would lose by each thing that could be done to it, from a pass over a few hundred rows.

Losses are nats of KL divergence from the model's own answers (of scores, squared differences, of vectors 1 minus the
cosine): heads and neurons by optimal brain surgery scaled to what some of their numbers were measured to lose
(`curves`), layers, quantized matrices and tables, cut vocabularies and factorized embeddings by doing it and comparing
the answers. That they add up is an assumption: what is planned by them is made and measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from compress.contracts import Batch, EncoderOutput, Needs, Progress, Teacher, WidthScores
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import Examples
from compress.data.batches.randomness import draw_spread_rows
from compress.data.tables.table import Rows, Table
from compress.data.task import Task
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.infer.layer_subsets import subset_outputs
from compress.encoder.infer.prepare import prepare
from compress.encoder.integers.fake_quantized import set_mode
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import units
from compress.errors import UserError
from compress.fit.cost.blocks import ranks
from compress.fit.cost.serving import FLOAT, Bits, Serving, quantize_to_bits
from compress.fit.loss.curves import curves
from compress.fit.loss.reading import Reading
from compress.fit.loss.row_answers import ANSWERS, answer_changed, answers, compute_kl_to_parent
from compress.fit.make.joined_layers import Join, collect_statistics, join_layers, list_joinable_layers
from compress.modelfolder.folder import LoadedModel
from compress.predict.predictor import MAX_TOKENS
from compress.stages.prune_vocab.dependencies import take_apart
from compress.stages.prune_vocab.rebuild import rebuild_tokenizer_files
from compress.stages.prune_vocab.selection import always, choose
from compress.stages.prune_vocab.spec import Spec as VocabularySpec
from compress.stages.prune_vocab.usage import loss as reading_loss
from compress.stages.prune_vocab.usage import read_rows
from compress.stages.prune_width.importance.obs import Importance
from compress.stages.prune_width.study import STUDY_TOKENS, WidthStudy
from compress.stages.share.factorization import apply, count, factorize
from compress.stages.shared.divergence import On, divergence, task_answers
from evaluation.cost.memory import return_pages

ROWS, TOKENS = (512, 2048), 32_768
"""Training rows that masks are judged and matrices are fitted on: at least, at most, and between them as many as have
so many tokens. 512 short texts have a few thousand, too few to fit matrices of 1536 columns to."""
COMPARED = 192
"""Validation rows that answers are compared on."""
CUTS: tuple[tuple[int, Literal["all", "used"]], ...] = ((1, "all"), (1, "used"), (2, "used"), (4, "used"), (8, "used"))
"""Ways of cutting the vocabulary: how often the training text must hold a piece, and which single characters stay."""
BETWEEN = (3 / 4, 1 / 2, 1 / 4, 1 / 8)
"""More of them: of the pieces that the first of these ways leaves out, the share that stays, the lowest ids. Texts that
come later hold pieces that the training text lacks, and the commonest have the lowest ids."""
EVEN = 2e-3
"""Nats that quantizing all matrices may cost to count as none."""
SAME = 2e-4
"""Nats that a rounded word table may cost to count as none: without a bound on megabytes it is taken all the same."""
JOINS = 2
"""Pairs of neighbours that may share, or a quarter of the layers: each takes seconds to fit."""
STUDIED = (
    "importance of heads and neurons", "fewer heads and neurons", "fewer layers", "matrices in fewer bits",
    "word table in fewer bits", "factorized embeddings", "smaller vocabularies", "layers that share", "cut models",
)  # fmt: skip
"""The parts of a study, as progress names them; how many passes one takes is known when it ends."""
NEARLY = 4.0
"""Times what the pair that is missed least loses without residuals; one that loses more is dear with them too."""


@dataclass(frozen=True)
class Vocabulary:
    """A cut vocabulary. kept: (v,) ids; None: all of them.  files: of the tokenizer over them."""

    name: str
    rows: int
    loss: float
    kept: np.ndarray | None
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Study:
    """scores: of heads and neurons, by unit; heads, neurons: what is lost with so many left.  drops: of each layer
    alone, empty where layers share matrices.  matrices: bits → (part, unit) → loss.  tables: bits of the word table →
    loss.  ranks: width of factorized embeddings → loss, 0 for those as they are.  joins: neighbouring layers that may
    share their matrices."""

    loaded: LoadedModel
    scores: WidthScores
    heads: Sequence[np.ndarray]
    neurons: Sequence[np.ndarray]
    drops: Sequence[float]
    matrices: Mapping[int, Mapping[tuple[str, int], float]]
    tables: Mapping[int, float]
    ranks: Mapping[int, float]
    vocabularies: Sequence[Vocabulary]
    joins: Sequence[Join] = ()


class RememberedAnswers:
    """Answers to a few batches, given again. known: by the batch's identity."""

    def __init__(self, known: Mapping[int, EncoderOutput]) -> None:
        self._known = known

    @classmethod
    def of(cls, model: Teacher, batches: Sequence[Batch]) -> RememberedAnswers:
        """Those of a model, computed once."""
        with torch.inference_mode():
            return cls({id(batch): model(batch, ANSWERS) for batch in batches})

    def __call__(self, batch: Batch, needs: Needs) -> EncoderOutput:
        return self._known[id(batch)]


class Student:
    """Studies one model. stop: called between passes.  say: takes a line.  progress: is told of the passes."""

    def __init__(
        self,
        loaded: LoadedModel,
        task: Task,
        table: Table,
        serving: Serving,
        max_length: int,
        seed: int,
        stop: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self.loaded, self.task, self.table, self.serving = loaded, task, table, serving
        self.max_length = min(max_length, loaded.config.max_positions)
        self.say, self.where = say, str(loaded.path)
        self._stop, self._passes, self._part = stop, 0, ""
        self.progress: Progress | None = None
        self.tokenizer = Tokenizer.from_files(loaded.tokenizer_files, where=self.where)
        train, held = table.split("train"), table.split("validation")
        self.seed = seed
        self.train, examples = self._studied(train)
        compared = self.task.count_rows(held, COMPARED)
        self.held = held.take(draw_spread_rows(len(held), compared, seed, "fit-compared"))
        self.batches = self._batches(examples, STUDY_TOKENS)
        self.compared = self._batches(self.encode_rows(self.held, self.tokenizer))
        self.ready = prepare(loaded.model)
        self.on: On = task_answers(loaded.model)
        self.known = RememberedAnswers.of(self.ready, self.compared)

    def _studied(self, train: Rows) -> tuple[Rows, Examples]:
        """The rows of the training split that are studied, and their tokens."""
        least, most = (self.task.count_rows(train, count) for count in ROWS)
        rows = train.take(draw_spread_rows(len(train), most, self.seed, "fit-study"))
        examples = self.encode_rows(rows, self.tokenizer)
        enough = max(least, most * TOKENS // max(TOKENS, len(examples.ids)))
        if enough == most:
            return rows, examples
        rows = train.take(draw_spread_rows(len(train), enough, self.seed, "fit-study"))
        return rows, self.encode_rows(rows, self.tokenizer)

    def encode_rows(self, rows: Rows, tokenizer: Tokenizer) -> Examples:
        return self.task.encode(tokenizer, rows, max_length=self.max_length)

    def calibration(self, files: Mapping[str, bytes], count: int) -> list[Batch]:
        """Training rows that are studied, at most so many, as the tokenizer of these files reads them."""
        rows = self.train.take(np.arange(min(count, len(self.train))))
        return self._batches(self.encode_rows(rows, Tokenizer.from_files(files, where=self.where)))

    def _batches(self, examples: Examples, max_tokens: int = MAX_TOKENS) -> list[Batch]:
        return [batch.to(self.serving.device) for batch in evaluation_batches(examples, max_tokens)]

    def stop(self) -> None:
        """Between two passes: raises Stopped where a signal asked for it, and reports progress."""
        self._stop()
        self._passes += 1
        if self.progress is not None:
            self.progress.update(self._passes, part=self._part)

    def _begin(self, part: str) -> None:
        """Progress says from here on which part of the study this is. part: of STUDIED."""
        return_pages()  # what was freed before, the small models that were timed included: gigabytes for 12 x 768
        self._part = f"{STUDIED.index(part) + 1} of {len(STUDIED)} ({part})"

    def study(self, *, joins: bool = False) -> Study:
        """All of it; no label is read. joins: layers that share too, which saves bytes and no time."""
        scores, widths = self._widths()
        self._begin("fewer layers")
        drops = self._drops()
        self._begin("matrices in fewer bits")
        matrices = {bits: self._matrices(bits) for bits in self.serving.bits}
        self._begin("word table in fewer bits")
        tables = {bits: self._table(bits) for bits in self.serving.table_bits}
        self._begin("factorized embeddings")
        narrow = {rank: self._rank(rank) for rank in ranks(self.loaded.config)}
        self._begin("smaller vocabularies")
        vocabularies = self._vocabularies()
        self._begin("layers that share")
        joined = self._joins() if joins else ()
        self._begin("cut models")
        return Study(
            loaded=self.loaded,
            scores=scores,
            heads=widths[: len(scores.heads)],
            neurons=widths[len(scores.heads) :],
            drops=drops,
            matrices=matrices,
            tables=tables,
            ranks={0: 0.0, **narrow},
            vocabularies=vocabularies,
            joins=joined,
        )

    def compute_kl_to_parent(self, model: Teacher) -> float:
        """Nats that a model's answers are from the whole one's, on the compared rows."""
        self.stop()
        return divergence(model, self.known, self.compared, self.on)

    def compute_kl_of_answers(self, answers: Mapping[int, EncoderOutput]) -> float:
        """The same of answers that were given: identity of a compared batch → to it."""
        return divergence(RememberedAnswers(answers), self.known, self.compared, self.on)

    def _widths(self) -> tuple[WidthScores, list[np.ndarray]]:
        """Of heads and neurons, and what is lost with so many of each unit left."""
        self._begin("importance of heads and neurons")
        width = WidthStudy(self.loaded.model, self.batches, seed=self.seed, name=self.where, stop=self.stop)
        importance = Importance()
        scores = importance(width)
        self._begin("fewer heads and neurons")
        # Its factors, a gigabyte for a model of 12 x 768, go with it: no later part reads them.
        return scores, curves(self, scores, width.factors(importance.on))

    def _drops(self) -> list[float]:
        """Of each layer, left out alone."""
        config = self.loaded.config
        if config.depth == 1 or any(len(unit) > 1 for part in PARTS for unit in units(config, part)):
            return []
        every = tuple(range(config.depth))
        sets = [tuple(i for i in every if i != gone) for gone in every]
        if not config.first_norm:
            sets = sets[1:]  # the first layer has no norm of its own before it, and none can take its place
        answers: dict[tuple[int, ...], dict[int, EncoderOutput]] = {kept: {} for kept in sets}
        for batch in self.compared:
            self.stop()
            for kept, output in subset_outputs(self.ready, batch, sets, ANSWERS):
                answers[kept][id(batch)] = output
        found = {kept: self.compute_kl_of_answers(at) for kept, at in answers.items()}
        alone = {next(i for i in every if i not in kept): value for kept, value in found.items()}
        return [alone.get(i, float("inf")) for i in every]

    def _matrices(self, bits: int) -> dict[tuple[str, int], float]:
        """Of each unit's matrices in so many bits; nothing where all together cost next to nothing."""
        config = self.loaded.config
        names = [(part, unit) for part in PARTS for unit in range(len(units(config, part)))]
        if bits == FLOAT:
            return dict.fromkeys(names, 0.0)
        made = quantize_to_bits(self.loaded.model, Bits({"encoder.layers.*": bits}, FLOAT, FLOAT), self.serving)
        together = self.compute_kl_to_parent(prepare(made))
        if together < EVEN:
            return dict.fromkeys(names, 0.0)
        found: dict[tuple[str, int], float] = {}
        set_mode(made, "float")
        judged = [Reading(made, batch) for batch in self.compared[: -(-len(self.compared) // 2)]]
        for layer in range(config.depth):
            for part, unit in names:
                if units(config, part)[unit][0] == layer:  # what is before it is in floats
                    found[part, unit] = self._compute_kl_rounded(made, part, units(config, part)[unit], judged)
            for reading in judged:
                reading.step()
        set_mode(made, "quantized")
        return {name: found[name] for name in names}

    def _compute_kl_rounded(self, made: Model, part: str, layers: Sequence[int], judged: Sequence[Reading]) -> float:
        """Nats that the rounded matrices of some layers cost alone. judged: texts before the first of these layers."""
        starts = tuple(f"encoder.layers.{made.config.groups[layer]}.{part}." for layer in layers)
        set_mode(made, lambda name: "quantized" if name.startswith(starts) else "float")
        self.stop()
        answers = {id(reading.batch): reading.answer(part) for reading in judged}
        set_mode(made, "float")
        return divergence(RememberedAnswers(answers), self.known, [reading.batch for reading in judged], self.on)

    def _table(self, bits: int) -> float:
        if bits == FLOAT:
            return 0.0
        found = self.compute_kl_to_parent(
            prepare(quantize_to_bits(self.loaded.model, Bits({}, bits, FLOAT), self.serving))
        )
        return 0.0 if found < SAME else found

    def _joins(self) -> list[Join]:
        """The neighbours that are missed least where they share, by what they lose without residuals, measured with
        them."""
        model, config = self.loaded.model, self.loaded.config
        firsts = list_joinable_layers(config)
        if not firsts:
            return []
        read = collect_statistics(model, self.batches)
        bare = {
            first: self.compute_kl_to_parent(prepare(join_layers(model, (first,), read, rank=0))) for first in firsts
        }
        near = [first for first in firsts if bare[first] <= NEARLY * min(bare.values())]
        best = sorted(near, key=lambda first: bare[first])[: max(JOINS, config.depth // 4)]
        return [
            Join(first, self.compute_kl_to_parent(prepare(join_layers(model, (first,), read))))
            for first in sorted(best)
        ]

    def _rank(self, rank: int) -> float:
        return self.compute_kl_to_parent(prepare(self.factorize_tables(self.loaded.model, rank)))

    def factorize_tables(self, model: Model, rank: int) -> Model:
        """With its tables as a product of this width, rows counted as often as the text uses them."""
        return apply(model, factorize(model, count(model.config, self.batches), size=rank)).eval()

    def _vocabularies(self) -> list[Vocabulary]:
        """That of the model, and those that the training text leaves of it."""
        loaded, config = self.loaded, self.loaded.config
        whole = Vocabulary("whole", config.vocabulary, 0.0, None, loaded.tokenizer_files)
        try:
            pieces = take_apart(self.tokenizer, self.where)
        except UserError as error:
            self.say(f"the vocabulary is not pruned: {error.what}")
            return [whole]
        reading = read_rows(self.task, self.tokenizer, self.table.split("train"), config.max_positions)
        counts = reading.counts(config.vocabulary)
        before = read_rows(self.task, self.tokenizer, self.held, config.max_positions)
        padding = range(config.pad_id + 1) if config.position_offset else (config.pad_id,)
        found = [whole]
        theirs = self.encode_rows(self.held, self.tokenizer)
        parents = answers(self.ready, theirs, self.serving.device)
        ways = [VocabularySpec(kind="prune_vocab", min_count=n, characters=characters) for n, characters in CUTS]
        fewest = len(always(pieces, counts, ways[0], padding, self.where) | set(np.flatnonzero(counts).tolist()))
        sizes = [VocabularySpec(kind="prune_vocab", size=size) for size in sizes_between(fewest, config.vocabulary)]
        for spec in [*sizes, *ways]:
            self.stop()
            try:
                kept = always(pieces, counts, spec, padding, self.where)
                choice = choose(pieces, counts, kept, spec, self.where)
                if len(choice.kept) >= found[-1].rows:
                    continue
                files = rebuild_tokenizer_files(pieces, choice.kept, self.where)
                small = Tokenizer.from_files(files, where=self.where)
                after = read_rows(self.task, small, self.held, config.max_positions)
                reading_loss(before, after, choice.new_ids, pieces.unknown, self.where)
            except UserError as error:
                self.say(f"skipping the vocabulary with {spec.amount}: {error.what}")
                continue
            examples = self.encode_rows(self.held, small)
            # The small model's rows are rows of this one, which answers the same.
            read = dataclasses.replace(examples, ids=choice.kept[examples.ids].astype(examples.ids.dtype))
            ours = answer_changed(self.ready, read, (parents, theirs), self.serving.device)
            lost = compute_kl_to_parent(
                self.task, (ours, examples), (parents, theirs), self.loaded.label_names, self.held
            )
            name = spec.amount + (", all characters" if spec.characters == "all" and spec.min_count else "")
            found.append(Vocabulary(name, len(choice.kept), lost, choice.kept, files))
        return found


def sizes_between(fewest: int, whole: int) -> list[int]:
    """The sizes of BETWEEN, each once, without that of the whole vocabulary: a text may leave nothing to cut."""
    sizes = dict.fromkeys(round(fewest + part * (whole - fewest)) for part in BETWEEN)
    return [size for size in sizes if size < whole]


PARTS = ("attention", "feed_forward")


def as_json(study: Study) -> dict[str, Any]:
    """What was found, for people and files; no weights."""
    return {
        "drops": [round(float(x), 6) for x in study.drops],
        "matrices": {
            str(bits): {f"{p} {u}": round(v, 6) for (p, u), v in row.items()} for bits, row in study.matrices.items()
        },
        "tables": {str(bits): round(v, 6) for bits, v in study.tables.items()},
        "ranks": {str(rank): round(v, 6) for rank, v in study.ranks.items()},
        "vocabularies": [
            {k: v for k, v in dataclasses.asdict(dataclasses.replace(x, kept=None, files={})).items() if k in KEYS}
            for x in study.vocabularies
        ],
        "heads": [[round(float(v), 6) for v in curve] for curve in study.heads],
        "joins": [[join.first, round(join.loss, 6)] for join in study.joins],
    }


KEYS = ("name", "rows", "loss")
