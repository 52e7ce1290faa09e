"""Learning a vocabulary, so that the same texts give the same files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from compress.contracts import SPECIAL_TOKENS
from compress.data.text import tokenizer_native
from compress.data.text.segmentation import IDEOGRAPH
from compress.data.text.tokenizer_files import finish
from compress.errors import UserError, did_you_mean

KINDS = ("wordpiece", "bpe", "unigram")
ALPHABET = 1000  # characters, ideographs apart, that get a token of their own; rarer ones become [UNK]
SCORE_UNITS = 100_000  # a score of a Unigram vocabulary, the logarithm of a probability, is a multiple of 1 / this
LINE = 10_000  # characters of a text given to a trainer at once
_SPECIALS = [names[0] for names in SPECIAL_TOKENS.values()]
_SMALLEST = {"wordpiece": 32, "bpe": 256 + len(_SPECIALS) + 1, "unigram": 32}


def train(
    texts: Iterable[str],
    kind: str,
    vocabulary_size: int,
    lowercase: bool,
    min_frequency: int,
    tokenize_chinese_chars: bool = True,
) -> dict[str, bytes]:
    """The files of a new tokenizer. tokenize_chinese_chars: of WordPiece, an ideograph is a word. Raises UserError."""
    if kind not in KINDS:
        raise UserError(f"unknown kind of tokenizer '{kind}'", do=did_you_mean(kind, KINDS))
    if vocabulary_size < _SMALLEST[kind]:
        raise UserError(
            f"a vocabulary of {vocabulary_size} is too small for {kind}", do=f"give {_SMALLEST[kind]} or more"
        )
    lines = [text[i : i + LINE] for text in texts for i in range(0, len(text), LINE) if text]
    if not any(line.strip() for line in lines):
        raise UserError("there is no text to train a tokenizer on")
    if kind == "wordpiece":
        made = _wordpiece(lines, vocabulary_size, lowercase, min_frequency, tokenize_chinese_chars)
    else:
        made = {"bpe": _bpe, "unigram": _unigram}[kind](lines, vocabulary_size, lowercase, min_frequency)
    return files_of(made, kind, lowercase, tokenize_chinese_chars)


def files_of(made: tokenizers.Tokenizer, kind: str, lowercase: bool, chinese: bool = True) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json, and vocab.txt where a vocabulary alone says all (WordPiece)."""
    described = {f"{role}_token": names[0] for role, names in SPECIAL_TOKENS.items()}
    described |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}
    described["clean_up_tokenization_spaces"] = False
    files = {"tokenizer.json": made.to_str(pretty=True).encode()}
    if kind == "wordpiece":
        described |= {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase}
        described |= {"strip_accents": None, "tokenize_chinese_chars": chinese}
        tokens = sorted(made.get_vocab().items(), key=lambda item: item[1])
        files["vocab.txt"] = "".join(f"{token}\n" for token, _ in tokens).encode()
    files["tokenizer_config.json"] = (json.dumps(described, indent=2, sort_keys=True) + "\n").encode()
    return files


def _wordpiece(
    lines: Sequence[str], size: int, lowercase: bool, min_frequency: int, chinese: bool
) -> tokenizers.Tokenizer:
    """WordPiece by the BPE-like trainer of the library, made to repeat itself.

    On its own that trainer numbers the "##c" pieces in the order of a hash table, and breaks ties by those numbers:
    two trainings on the same text differ. So all of them are given to it beforehand, sorted.
    """
    made = _bert({name: i for i, name in enumerate(_SPECIALS)}, lowercase=lowercase, chinese=chinese)
    inner, first = _characters(made, lines)
    alphabet = _alphabet(inner, first, size, min_frequency)
    pieces = [f"##{c}" for c in alphabet if inner[c]]
    if len(_SPECIALS) + len(alphabet) + len(pieces) > size:
        raise UserError(
            f"a vocabulary of {size:,} is too small for the characters of this text",
            why=f"{len(alphabet):,} characters, {len(pieces):,} of them also inside words",
            do=f"give {len(_SPECIALS) + len(alphabet) + len(pieces) + 100:,} or more",
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=_SPECIALS + pieces,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix="##",
        show_progress=False,
    )
    made.train_from_iterator(lines, trainer, length=len(lines))
    # anew: the pieces must not stay special tokens
    return _bert(made.get_vocab(), lowercase=lowercase, chinese=chinese)


def _bert(vocabulary: dict[str, int], *, lowercase: bool, chinese: bool) -> tokenizers.Tokenizer:
    """BERT's tokenizer over a vocabulary that holds the five special tokens."""
    made = tokenizer_native.wordpiece(vocabulary, lowercase=lowercase, chinese=chinese)
    finish(made)
    return made


def _characters(made: tokenizers.Tokenizer, lines: Sequence[str]) -> tuple[Counter[str], Counter[str]]:
    """How often each character stands inside a word, and at its start."""
    words: Counter[str] = Counter()
    assert made.normalizer is not None
    assert made.pre_tokenizer is not None
    for line in lines:
        words.update(word for word, _ in made.pre_tokenizer.pre_tokenize_str(made.normalizer.normalize_str(line)))
    inner: Counter[str] = Counter()
    first: Counter[str] = Counter()
    for word, count in words.items():
        first[word[0]] += count
        for c in word[1:]:
            inner[c] += count
    return inner, first


def _alphabet(inner: Counter[str], first: Counter[str], size: int, min_frequency: int) -> list[str]:
    """The characters that get a token of their own, sorted; ties go to the smaller code point.

    Ideographs are words rather than letters: a Chinese text has thousands, and each that is seen often enough is a
    token as long as there is room, the most frequent first.
    """
    counts = inner + first
    ranked = sorted(counts, key=lambda c: (-counts[c], c))
    letters = [c for c in ranked if not IDEOGRAPH.match(c)][:ALPHABET]
    room = size - len(_SPECIALS) - len(letters) - sum(c in inner for c in letters)
    chosen = []
    for c in ranked:
        cost = 1 + (c in inner)
        if IDEOGRAPH.match(c) and counts[c] >= min_frequency and cost <= room:
            chosen.append(c)
            room -= cost
    return sorted(letters + chosen)


def _bpe(lines: Sequence[str], size: int, lowercase: bool, min_frequency: int) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.normalizer = _folding(lowercase)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(lines, trainer, length=len(lines))
    finish(made)
    return made


def _unigram(lines: Sequence[str], size: int, lowercase: bool, min_frequency: int) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = _folding(lowercase)
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=_SPECIALS, unk_token="[UNK]", show_progress=False)
    made.train_from_iterator(lines, trainer, length=len(lines))
    learnt = json.loads(made.to_str())["model"]["vocab"]
    count = len(_SPECIALS)
    # A piece may be the text of a special token, which has an id already and must keep it.
    pieces = repeatable({piece: score for piece, score in learnt[count:] if piece not in _SPECIALS})
    made.model = models.Unigram([(name, 0.0) for name in _SPECIALS] + pieces, unk_id=1)
    made.decoder = decoders.Metaspace()
    finish(made)
    return made


def repeatable(learnt: Mapping[str, float]) -> list[tuple[str, float]]:
    """Piece → score of the library's Unigram trainer, as every training on the same texts gives them, sorted.

    From run to run it lists the pieces in another order, their scores differ in the last digits, and the characters
    that it did not learn (lowest score, 0.0001 more for each) share those scores in the order of a hash table.
    """
    units = {piece: round(score * SCORE_UNITS) for piece, score in learnt.items()}
    by_score: dict[int, list[str]] = {}
    for piece, unit in units.items():
        if len(piece) == 1:
            by_score.setdefault(unit, []).append(piece)
    unlearnt: list[str] = []
    at = min(units.values(), default=0)
    while near := [piece for unit in (at - 1, at, at + 1) for piece in by_score.get(unit, ())]:
        unlearnt += near
        at += SCORE_UNITS // 10_000
    units |= zip(sorted(unlearnt), sorted((units[piece] for piece in unlearnt), reverse=True), strict=True)
    return sorted((piece, unit / SCORE_UNITS) for piece, unit in units.items())


def _folding(lowercase: bool) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = [normalizers.NFKC()]
    return normalizers.Sequence([*steps, normalizers.Lowercase()] if lowercase else steps)
