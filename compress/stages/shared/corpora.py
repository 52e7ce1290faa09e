"""What the verbs share about running text: opening it, hiding pieces of it, and how well hidden pieces are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from compress.contracts import Batch, BatchSource, EncoderOutput, MaskingSpec, Needs, NoiseSpec, TrainingPlan
from compress.data.batches.corpus_batches import CorpusBatches
from compress.data.batches.evaluation_batches import copy_to_host
from compress.data.reading.corpus import Corpus, with_task_texts
from compress.data.reading.file_corpus import open_corpus
from compress.data.tables.table import Table
from compress.data.text import segmentation
from compress.data.text.noise import EachEpoch, add_typos_to_corpus
from compress.data.text.segmentation import Segmenter
from compress.data.text.token_store import load_or_store_tokens
from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokens import Tokens, tokenize
from compress.errors import UserError
from compress.recipe import Recipe
from compress.stages.shared.shared_pass import collect, share_out
from compress.stages.shared.stage import StageContext
from compress.stages.shared.validation import outputs_of
from evaluation.quality.mask_gap import mask_gap

HELD_OUT_ROWS = 64
GAP_STEPS = 64  # of training, whose masks the mask-overfitting gap is measured on


def open_corpus_of(recipe: Recipe, table: Callable[[], Table]) -> Corpus:
    """The recipe's plain text, with the training texts of its labelled data where it asks for them."""
    c = recipe.corpus
    if c is None:
        raise UserError(f"recipe {recipe.name} names no corpus", where="corpus", do="add --corpus")
    corpus = open_corpus(c.source, text_column=c.text_column, limit=c.limit, stream=c.stream)
    if c.task_texts and corpus.stored:
        raise _in_memory_only("task texts cannot be added to a streamed corpus", "corpus.task_texts")
    return with_task_texts(corpus, table().split("train")) if c.task_texts else corpus


def _in_memory_only(what: str, where: str) -> UserError:
    why = "this corpus is streamed from its files"
    return UserError(what, where=where, why=why, do="remove it, or set corpus.stream: false")


def segmenter_of(masking: MaskingSpec) -> Segmenter | None:
    """What says where words begin, if the recipe does not leave it to the tokenizer. Raises UserError."""
    if masking.word_list is not None:
        return segmentation.word_list(masking.word_list)
    return None if masking.segmenter is None else segmentation.import_segmenter(masking.segmenter, "masking.segmenter")


def words_read(recipe: Recipe, indices: Sequence[int]) -> dict[str, str]:
    """Fingerprints of what tells the words of some stages' text: a run goes on only with the same. Raises UserError."""
    found = {}
    for index in indices:
        masking = getattr(recipe.stages[index], "masking", None)
        if masking is not None and (segmenter := segmenter_of(masking)) is not None:
            found[f"words of stage {index}"] = segmenter.fingerprint
    return found


def corpus_batches(
    context: StageContext,
    tokenizer: Tokenizer,
    split: str,
    masking: MaskingSpec,
    plan: TrainingPlan,
    *,
    block_length: int,
    pairs: str = "none",
    across_documents: bool = False,
    noise: NoiseSpec | None = None,
    mask_seed: int | None = None,
) -> CorpusBatches | EachEpoch:
    """Masked blocks of the recipe's corpus. The validation split hides the same tokens every time it is read.

    noise: of the train text, which is then tokenized anew for each epoch.  mask_seed: hide pieces of the train text by
    this seed and not by the run's.
    """
    held_out = split == "validation"
    if masking.strategy == "distilbert" and not held_out:
        choice = "distilbert"
    else:
        choice = "whole_word" if masking.whole_word else "token"

    def batches(corpus: Corpus) -> CorpusBatches:
        return CorpusBatches(
            _tokens(corpus, tokenizer, split, masking, context),
            tokenizer,
            block_length=block_length,
            rows_per_step=HELD_OUT_ROWS if held_out else plan.batch_rows,
            max_tokens=plan.max_tokens,
            seed=context.seed,
            masking="static" if held_out or masking.strategy == "static" else "dynamic",
            choice=choice,
            pairs=pairs,
            rate=masking.probability,
            shares=(masking.mask, masking.random),
            across_documents=across_documents,
            ngrams=masking.ngrams,
        )

    corpus, seed = context.corpus(), context.seed
    if noise is None or held_out:
        made = batches(corpus)
        return made if held_out or mask_seed in (None, seed) else made.with_mask_seed(mask_seed)
    if corpus.stored:
        raise _in_memory_only("typo noise is not supported for a streamed corpus", "noise")
    made = lambda epoch: batches(add_typos_to_corpus(corpus, split, noise, seed, epoch))  # noqa: E731
    return EachEpoch(made, [noise.model_dump(mode="json"), seed])


def _tokens(corpus: Corpus, tokenizer: Tokenizer, split: str, masking: MaskingSpec, context: StageContext) -> Tokens:
    if corpus.stored and split == "train":  # what is held out is small, and read again and again
        return load_or_store_tokens(corpus, tokenizer, split, segmenter_of(masking), say=context.say)
    return tokenize(corpus, tokenizer, split, segmenter_of(masking))


# --- how well hidden pieces are told ----------------------------------------------------------------------------


def encode_validation(source: BatchSource, context: StageContext) -> list[Batch]:
    """All held-out text, with the masks of the first epoch, on the device."""
    return [b.to(context.device) for i in range(source.steps(0)) for b in source.step(0, i)]


def corpus_validation(source: BatchSource, context: StageContext) -> Callable[[nn.Module], dict[str, float]]:
    """Masked-LM loss (and the pair task's accuracy) on held-out text."""
    batches = encode_validation(source, context)
    has_pairs = batches[0].pair_labels is not None

    def validate(module: nn.Module) -> dict[str, float]:
        shared = share_out([batch.tokens for batch in batches])
        losses, counts, hits, pairs = [], [], [], []
        needs = Needs(mlm="masked", pair_logits=has_pairs)
        for batch, output in outputs_of(module, (batches[i] for i in shared), len(shared), needs, context):
            loss, masked = _masked_loss(batch, output)
            losses.append(loss)
            counts.append(masked)
            pairs.append(batch.rows if has_pairs else 0)
            if output.pair_logits is not None:
                hits.append((output.pair_logits.argmax(-1) == batch.pair_labels).sum())
        found = list(map(float, copy_to_host([*losses, *hits])))
        right = found[len(losses) :] or [0.0] * len(losses)
        parts = collect(shared, list(zip(found[: len(losses)], counts, right, pairs, strict=True)))
        if parts is None:
            return {}
        loss, count, right, pairs = (sum(column) for column in zip(*parts, strict=True))
        return {"mlm_loss": loss / max(1, count)} | ({"pair_accuracy": right / pairs} if pairs else {})

    return validate


def mask_overfitting(
    source: BatchSource, fresh: BatchSource, context: StageContext
) -> Callable[[nn.Module, int], dict[str, float]]:
    """Masked-LM loss on the masks that the last steps of training saw, and on fresh masks of the same text.

    source: what was trained on.  fresh: the same rows in the same steps with other masks.
    """

    def closing(module: nn.Module, steps: int) -> dict[str, float]:
        sums: list[list[float]] = [[], []]
        counts: list[list[int]] = [[], []]
        for epoch, index in last_steps(source, steps, GAP_STEPS):
            for side, batches in enumerate((source, fresh)):
                found = [b.to(context.device) for b in batches.step(epoch, index)]
                outputs = outputs_of(module, found, len(found), Needs(mlm="masked"), context)
                losses = [_masked_loss(b, o) for b, o in outputs]
                sums[side].append(sum(map(float, copy_to_host([loss for loss, _ in losses]))))
                counts[side].append(sum(count for _, count in losses))
        told = mask_gap(sums[0], counts[0], sums[1], counts[1])
        gap = told.gap
        context.say(
            f"{context.folder.name}: masked-LM loss {told.seen:.3f} on masks seen in training, {told.fresh:.3f} on"
            f" fresh masks of the same text: mask-overfitting gap {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
        )
        return {
            "mlm_loss_seen_masks": told.seen,
            "mlm_loss_fresh_masks": told.fresh,
            "mask_overfitting_gap": gap.value,
            "mask_overfitting_gap_low": gap.low,
            "mask_overfitting_gap_high": gap.high,
        }

    return closing


def last_steps(source: BatchSource, steps: int, most: int) -> list[tuple[int, int]]:
    """(epoch, index) of at most `most` steps, spread evenly over the last epoch's length of the first `steps`."""
    places = []
    epoch = 0
    while len(places) < steps:
        places += [(epoch, index) for index in range(min(source.steps(epoch), steps - len(places)))]
        epoch += 1
    last = places[-max(1, source.steps(places[-1][0])) :]
    chosen = range(0, len(last), -(-len(last) // most))
    return [last[i] for i in chosen]


def _masked_loss(batch: Batch, output: EncoderOutput) -> tuple[Tensor, int]:
    """Summed cross entropy at the masked positions, a scalar, and how many there are."""
    assert output.vocabulary is not None
    assert batch.mlm_labels is not None
    logits = output.vocabulary.logits().float()
    return F.cross_entropy(logits, batch.mlm_labels, reduction="sum"), len(batch.mlm_labels)
