"""An embedding model into a static one: a vector for each token of its vocabulary; a distillation after it trains
them."""

from __future__ import annotations

import dataclasses

import torch

from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokenizer_files import lowercased
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.heads import HeadConfig
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.encoder.modules.static import finish_static
from compress.errors import UserError
from compress.modelfolder.families.model2vec import make_static_config
from compress.modelfolder.sentence_head import EMBEDDING
from compress.stages.make_static import token_vectors
from compress.stages.make_static.spec import Spec
from compress.stages.shared.model_shape import ModelShape, make_no_vectors_error
from compress.stages.shared.originals import Original
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput

BATCH_ROWS = 256


class Stage:
    """A model for sentence embeddings and texts → a table of token vectors."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        made = start or teacher
        if made is None or made.config is None:
            return made
        if not made.embeds:
            raise make_no_vectors_error(self.spec.kind)
        dimensions = self.spec.dimensions
        config = make_static_config(made.config.vocabulary, dimensions or made.config.hidden)
        known = None if dimensions is None else config
        return dataclasses.replace(made, depth=0, positions=config.max_positions, masked_lm=False, config=known)

    def plan(self) -> list[str]:
        weights = "" if self.spec.sif is None else f", SIF weights with a = {self.spec.sif:g}"
        cut = self.spec.dimensions
        width = "the parent's width for each token" if cut is None else f"{cut} dimensions for each token, by PCA"
        return [f"a vector of {width}{weights}"]

    def prepare(self) -> PreparedStage:
        """Make the table here; nothing is left for the training loop.

        Raises UserError for a model that gives no vectors, and for more dimensions than it has; Stopped where a signal
        asked for it."""
        c, s = self.context, self.spec
        original = Original.of(c, "task_specific", "make-static")
        loaded = original.loaded
        head, config = loaded.heads["task"], loaded.config
        if head.kind != EMBEDDING:
            raise make_no_vectors_error(s.kind)
        dimensions = s.dimensions or head.labels
        _check(config, head, dimensions, str(original.folder))
        tokenizer = Tokenizer.from_files(loaded.tokenizer_files, where=str(original.folder))
        tokenizer.check_fits(config.vocabulary, where=str(original.folder))
        examples = token_vectors.wrap_tokens(tokenizer, config.vocabulary)
        parent = prepare(loaded.model, c.precision)
        with c.workshop.progress("token vectors", len(examples), "tokens") as progress:
            vectors = token_vectors.embed_tokens(parent, examples, c.device, c.workshop.stop, progress.update)
        weights, seen = None, config.vocabulary
        if s.sif is not None:
            counts = token_vectors.count_tokens(original.batches(BATCH_ROWS), config.vocabulary)
            weights, seen = token_vectors.compute_sif_weights(counts, s.sif), int((counts > 0).sum())
            c.say(f"{seen:,} of {config.vocabulary:,} tokens are in the training texts")
        silent = torch.tensor(sorted({*tokenizer.special_ids.tolist(), *_unknown(tokenizer)}), dtype=torch.int64)
        table = token_vectors.build_table(vectors, weights, silent, dimensions)
        model = _static_model(table)
        files = loaded.tokenizer_files
        if loaded.meta.task_settings.get("lowercase"):
            files = lowercased(files, str(original.folder))
        meta = original.meta(f"a static model: a vector of {dimensions} dimensions for each token")
        settings = {key: value for key, value in meta.task_settings.items() if key != "lowercase"}
        meta = meta.model_copy(update={"task_settings": settings})
        return PreparedStage(
            finish=lambda: StageOutput(finish_static(model), files, meta),
            params={
                "student.layers": 0,
                "student.hidden": dimensions,
                "make_static.tokens_in_texts": seen,
            },
        )


def _static_model(table: torch.Tensor) -> Model:
    """(V, D) → the model of it, with vectors of length 1."""
    vocabulary, width = table.shape
    head = HeadConfig(EMBEDDING, labels=width, pooling="mean", normalize=True)
    with torch.device("meta"):
        model = Model(make_static_config(vocabulary, width), {"task": head})
    model.load_state_dict({"encoder.embeddings.word.weight": table.contiguous()}, assign=True)
    return model.eval()


def _unknown(tokenizer: Tokenizer) -> list[int]:
    """[UNK], of which model2vec reads nothing."""
    return [tokenizer.unk_id] if "unk" in tokenizer.specials else []


def _check(config: EncoderConfig, head: HeadConfig, dimensions: int, where: str) -> None:
    if dimensions > head.labels:
        raise UserError(
            f"{dimensions} dimensions", where="dimensions", why=f"the vectors of {where} have {head.labels}",
            do=f"give {head.labels} or less",
        )  # fmt: skip
    if config.is_static:
        raise UserError("the model is a static model already", where=where, do="start from a model with layers")
