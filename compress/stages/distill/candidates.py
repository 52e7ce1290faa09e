"""Replacement candidates for words: masked language model predictions, or neighbours in an embedding table.

Candidates are whole words of one piece each, made of letters, other than the word itself. For words of several pieces
the paper (Jiao et al., arXiv 1909.10351) takes the nearest words of GloVe; here they are the nearest by cosine in the
model's own input embeddings, a word of several pieces being the mean of them. That mean is near to words that share its
first piece ("unfunny" to "un"): good neighbours have the words of one piece. Unlike the paper's code, no word is left
out as too common, and the hidden word's own text is all that the model sees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from compress.contracts import Needs, Teacher
from compress.data.batches.epoch_order import micro_batches
from compress.data.batches.examples import pack
from compress.data.batches.ragged import bounds_of
from compress.data.text.rewording import Passage
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.modules.model import Model
from compress.storage import atomic, safe
from compress.storage.cache import cache_folder
from compress.storage.lock import file_lock

FORMAT = "augmentation-1"
SHARD = 512
"""Texts of a shard: what is lost when it stops on the way."""
AT_ONCE = 8192  # tokens of one pass
NONE = -1  # where a word has fewer candidates
BEFORE = "a"  # what stands before a word when it is looked at alone: some tokenizers cut the first of a text otherwise


class Words:
    """The words that can stand for others: those of letters that the tokenizer makes one piece of."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        special = set(tokenizer.special_ids.tolist()) | {tokenizer.specials.get("unk", NONE)}
        named = {i: tokenizer.decode([i]).strip() for i in sorted(tokenizer.vocabulary.values()) if i not in special}
        told = {i: word for i, word in named.items() if word.isalpha()}
        pieces = self.tokenize(list(told.values()))
        self.surfaces = {i: word for (i, word), p in zip(told.items(), pieces, strict=True) if p.tolist() == [i]}
        self.ids = np.array(sorted(self.surfaces), dtype=np.int64)

    def tokenize(self, words: Sequence[str]) -> list[np.ndarray]:
        """Of each word, as it is cut within a text."""
        first = len(self.tokenizer.encode_plain([BEFORE], words=False).ids)
        made = self.tokenizer.encode_plain([f"{BEFORE} {word}" for word in words], words=False)
        return [made.ids[start + first : end] for start, end in zip(made.offsets, made.offsets[1:])]

    def tell(self, ids: Sequence[int]) -> list[str]:
        """The words of ids, without those that are missing."""
        return [self.surfaces[i] for i in ids if i != NONE]


class Neighbours:
    """The nearest words in an embedding table, by cosine; found once for each word."""

    def __init__(self, model: Model, words: Words, count: int) -> None:
        self.words, self.count = words, count
        self._table = model.encoder.embeddings.word.weight.detach().float().cpu()
        self._known: dict[str, np.ndarray] = {}

    @cached_property
    def _directions(self) -> torch.Tensor:
        """(words, E) of length 1."""
        return F.normalize(self._table[torch.from_numpy(self.words.ids)])

    def of(self, asked: Sequence[str]) -> list[np.ndarray]:
        """Ids of at most `count` words for each, nearest first; none for what the tokenizer does not know."""
        new = [word for word in dict.fromkeys(asked) if word not in self._known]
        for start in range(0, len(new), 1024):
            self._learn(new[start : start + 1024])
        return [self._known[word] for word in asked]

    def _learn(self, asked: list[str]) -> None:
        unknown = self.words.tokenizer.specials.get("unk", NONE)
        pieces = self.words.tokenize(asked)
        means = torch.stack(
            [self._table[torch.from_numpy(p.astype(np.int64))].mean(0) if len(p) else self._table[0] for p in pieces]
        )
        most = min(self.count + 2, len(self.words.ids))  # itself and one spelt alike are passed over
        nearest = (F.normalize(means) @ self._directions.T).topk(most, dim=1).indices.numpy()
        for word, found, row in zip(asked, pieces, self.words.ids[nearest], strict=True):
            known = len(found) > 0 and unknown not in found
            self._known[word] = _others(row, word, self.words)[: self.count] if known else row[:0]


class Predictions:
    """What a masked language model expects where a word of one piece stands; neighbours for the other words.

    model: prepared, with a masked-LM head.
    """

    def __init__(
        self, model: Teacher, words: Words, neighbours: Neighbours, count: int, max_length: int, device: str
    ) -> None:
        self.model, self.words, self.neighbours = model, words, neighbours
        self.count, self.max_length, self.device = count, max_length, device

    def of(self, found: Sequence[Passage]) -> np.ndarray:
        """(words of all passages, count) int32 ids, likeliest first, NONE where there are fewer."""
        asked = [word for p in found for word in p.words()]
        out = np.full((len(asked), self.count), NONE, dtype=np.int32)
        single, several, ids, offsets = self._placed(found)
        for number, near in zip(several, self.neighbours.of([asked[n] for n in several]), strict=True):
            out[number, : len(near)] = near
        if single:
            rows, places, numbers = (np.array(column, dtype=np.int64) for column in zip(*single, strict=True))
            expected = self._expected(ids, offsets, rows, places)
            for number, row in zip(numbers.tolist(), expected, strict=True):
                likely = _others(row, asked[number], self.words)[: self.count]
                out[number, : len(likely)] = likely
        return out

    def _placed(self, found: Sequence[Passage]):
        """((passage, place of the piece in it, number of the word) of words of one piece, numbers of those of several,
        ids, offsets). A word that was cut off, or that the tokenizer does not know, is in none."""
        tokenizer = self.words.tokenizer
        made = tokenizer.encode_batch([p.text for p in found], max_length=self.max_length, spans=True)
        assert made.spans is not None
        special, unknown = tokenizer.special_mask(made.ids), tokenizer.specials.get("unk", NONE)
        single, several, number = [], [], 0
        for row, p in enumerate(found):
            start, end = int(made.offsets[row]), int(made.offsets[row + 1])
            ends = made.spans[start:end, 1].astype(np.int64)
            real = ~special[start:end] & (ends > made.spans[start:end, 0])
            for begin, stop in p.places:
                # a piece belongs to the word that its last character is in
                pieces = np.flatnonzero(real & (ends > begin) & (ends <= stop))
                whole = len(pieces) > 0 and ends[pieces[-1]] == stop
                if whole and len(pieces) == 1 and int(made.ids[start + pieces[0]]) != unknown:
                    single.append((row, int(pieces[0]), number))
                elif whole:
                    several.append(number)
                number += 1
        return single, several, made.ids, made.offsets

    def _expected(self, ids: np.ndarray, offsets: np.ndarray, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        """(M, count + 2) likeliest words at `places` of `rows`, each hidden in a text of its own."""
        most = min(self.count + 2, len(self.words.ids))
        out = np.zeros((len(rows), most), dtype=np.int64)
        lengths = np.diff(offsets)[rows]
        allowed = torch.from_numpy(self.words.ids).to(self.device)
        for part in micro_batches(np.arange(len(rows)), lengths, AT_ONCE):
            bounds = bounds_of(lengths[part])
            flat = np.concatenate([ids[offsets[r] : offsets[r + 1]] for r in rows[part]])
            hidden = bounds[:-1] + places[part]
            originals = flat[hidden]
            flat[hidden] = self.words.tokenizer.mask_id
            batch = pack(
                flat,
                bounds,
                segments=np.zeros(len(flat), dtype=np.uint8),
                special=np.zeros(len(flat), dtype=bool),
                row_ids=part,
                mlm_positions=hidden,
                mlm_labels=originals,
            ).to(self.device)
            output = self.model(batch, Needs(mlm="masked")).vocabulary
            assert output is not None
            with torch.inference_mode():
                likely = output.logits().float()[:, allowed].topk(most, dim=1).indices.cpu().numpy()
            out[part] = self.words.ids[likely]
        return out


def _others(ids: np.ndarray, word: str, words: Words) -> np.ndarray:
    """Without those that are the word itself, however it is spelt in capitals."""
    same = word.casefold()
    return np.array([i for i in ids.tolist() if words.surfaces[i].casefold() != same], dtype=np.int64)


# --- on the disk ------------------------------------------------------------------------------------------------


def load_or_predict(
    found: Sequence[Passage],
    predictions: Predictions,
    mark: Sequence[object],
    *,
    folder: Path | None = None,
    update: Callable[[int], None] = lambda _: None,
    stop: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda _: None,
) -> np.ndarray:
    """(words of all passages, count) ids; predicted once and kept on the disk, in shards that are whole or not there.

    mark: what they depend on beside the passages.  folder: where, `cache_folder()` when None.  update: told how many
    passages are done.  stop: asked before each shard. A damaged shard is made again.
    """
    digest = hashlib.sha256(json.dumps([FORMAT, SHARD, *mark]).encode())
    for p in found:
        digest.update(json.dumps([p.text, p.places]).encode())
    place = (folder or cache_folder()) / "augmentation" / digest.hexdigest()[:32]
    shards = [np.zeros((0, predictions.count), dtype=np.int32)]
    with file_lock(place.with_suffix(".lock")):
        for number, start in enumerate(range(0, len(found), SHARD)):
            stop()
            part = found[start : start + SHARD]
            shards.append(_shard(place / f"shard-{number:05d}", part, predictions, say))
            update(min(start + SHARD, len(found)))
    return np.concatenate(shards)


def _shard(place: Path, part: Sequence[Passage], predictions: Predictions, say: Callable[[str], None]) -> np.ndarray:
    """(words, count) of some passages, read or made."""
    shape = (sum(len(p.places) for p in part), predictions.count)
    if place.exists():
        problems = atomic.verify_folder(place)
        note = {} if problems else safe.read_json(place / "shard.json")
        if not problems and note.get("shape") == list(shape):
            data = (place / "candidates.bin").read_bytes()
            return np.frombuffer(data, dtype="<i4").reshape(shape)
        say(f"{place} is damaged ({problems[0] if problems else 'of another shape'}); it will be rebuilt")
        atomic.remove_folder(place)
    table = predictions.of(part)
    with atomic.new_folder(place, needed=table.nbytes) as temp:
        atomic.write_bytes(temp / "candidates.bin", table.astype("<i4").tobytes())
        atomic.write_json(temp / "shard.json", {"format": FORMAT, "shape": list(shape)})
    return table
