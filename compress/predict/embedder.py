"""A model folder that turns texts into vectors, and what evens these out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from compress.contracts import Needs
from compress.data.batches.evaluation_batches import evaluation_batches, restore_outputs
from compress.data.batches.examples import encode_texts
from compress.data.tasks.embedding import check_prompts
from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokenizer_files import lowercased
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.layout import PackedLayout
from compress.errors import UserError
from compress.modelfolder.cross_encoder import RERANKING
from compress.modelfolder.folder import load_model
from compress.modelfolder.sentence_pooling import READS, Dense, SentenceParts, read_parts
from compress.predict.predictor import MAX_TOKENS
from compress.training.memory import choose_token_budget
from compress.training.precision import Precision, serving_precision
from evaluation.representation.anisotropy import PostProcessing


class Embedder:
    """Vectors of texts by a model folder on this device: pooled, and post-processed as the folder says.

    A folder that says nothing means the mean of all tokens. Its default prompt comes before each text, and its
    `do_lower_case` lower-cases them. Heads are left behind. precision: as of `Predictor`.
    Raises UserError for a reranker.
    """

    def __init__(self, folder: Path, *, device: str = "cpu", precision: Precision = "auto") -> None:
        self.folder, self.device = Path(folder), device
        loaded = load_model(self.folder, keep=(), device=device)
        if loaded.meta.task == RERANKING:
            raise UserError(
                "the model is a reranker: it scores pairs and gives no vectors", where=str(self.folder),
                do='remove --embeddings, and give a query and --pair "a document"',
            )  # fmt: skip
        self.config = loaded.config
        self.parts: SentenceParts = read_parts(self.folder, self.config.hidden)
        files = loaded.tokenizer_files
        if self.parts.lowercase:
            files = lowercased(files, str(self.folder))
        self.tokenizer = Tokenizer.from_files(files, where=str(self.folder))
        self.tokenizer.check_fits(self.config.vocabulary, where=str(self.folder))
        self.max_length = min(self.parts.max_length or loaded.meta.max_length or 10**9, self.config.max_positions)
        check_prompts(self.tokenizer, [self.parts.prompt], self.max_length)
        self._run = prepare(loaded.model, serving_precision(precision, device))

    @property
    def width(self) -> int:
        """Of a vector."""
        return self.parts.width(self.config.hidden)

    def compute_pooled(self, texts: Sequence[str], told: Callable[[int], None] = lambda _: None) -> torch.Tensor:
        """(N, hidden) fp32 on the CPU, before any post-processing. told: of how many texts are done.

        Raises UserError when there is no text."""
        prompt = self.parts.prompt
        whole = [prompt + text for text in texts] if prompt else texts
        examples = encode_texts(self.tokenizer, whole, max_length=self.max_length)
        found, done = [], 0
        for batch in evaluation_batches(examples, choose_token_budget(self.config, self.device, MAX_TOKENS)):
            read = self._run.model.select_tokens(batch).to(self.device)
            state, layout = self._run(read, Needs()).last_hidden, PackedLayout.of(read)
            found.append((batch.row_ids.numpy(), layout.pool(state, READS[self.parts.pooling])))
            done += batch.rows
            told(done)
        return torch.from_numpy(restore_outputs(examples, found))

    def with_prompt(self, name: str | None) -> Embedder:
        """The same with the prompt of this name before each text; None: as it is. Raises UserError where the folder has
        none."""
        if name is None:
            return self
        other = copy.copy(self)
        other.parts = read_parts(self.folder, self.config.hidden, name)
        check_prompts(self.tokenizer, [other.parts.prompt], self.max_length)
        return other

    def vectors(self, texts: Sequence[str], told: Callable[[int], None] = lambda _: None) -> torch.Tensor:
        """(N, width) fp32 on the CPU, before they are made of length 1 where the folder asks for that."""
        pooled = self.compute_pooled(texts, told)
        for dense in self.parts.denses:
            pooled = dense(pooled)
        return pooled[:, : self.parts.truncate]

    def __call__(self, texts: Sequence[str], told: Callable[[int], None] = lambda _: None) -> np.ndarray:
        """(N, width) float32, as the folder says."""
        return self.parts(self.compute_pooled(texts, told)).numpy()


def dense_of(evening: PostProcessing, width: int) -> Dense:
    """The same map as a matrix and a bias, fp32, of vectors of this width, whose last numbers may count for nothing."""
    weight = evening.matrix.T.float()
    weight = torch.nn.functional.pad(weight, (0, width - weight.shape[1]))
    return Dense(weight.contiguous(), (-evening.mean @ evening.matrix).float())
