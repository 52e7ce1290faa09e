"""How many tokens the texts of a data set need."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from compress.data.tables.table import spread_places
from compress.data.tasks import task_of
from compress.data.text.tokenizer import Tokenizer
from compress.modelfolder.open import open_folder
from compress.recipe import Recipe
from compress.stages.shared.labelled_data import open_table_of

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
WHOLE = 0.99
"""Share of the training rows that are to be read whole."""
SAMPLE = 2000
"""Training rows that are tokenized, evenly spaced."""


def choose_text_length(recipe: Recipe, folder: Path) -> int:
    """The least of LENGTHS that truncates at most one in a hundred training rows of the recipe's data, but no more than
    the positions of the model in `folder`. Raises UserError for data or a model that cannot be read."""
    opened = open_folder(folder, verify=False)
    most = opened.description.encoder.max_positions
    tokenizer = Tokenizer.from_files(opened.tokenizer_files, where=str(folder))
    table = open_table_of(recipe)
    train = table.split("train")
    rows = train.take(spread_places(len(train), SAMPLE))
    found = task_of(table.task, table.settings).encode(tokenizer, rows, max_length=most)
    _, row = np.unique(found.numbers, return_inverse=True)
    needed = np.zeros(row.max() + 1, dtype=np.int64)
    np.maximum.at(needed, row, found.lengths)
    return choose_length(needed, most)


def choose_length(needed: np.ndarray, most: int) -> int:
    """needed: (N,) tokens of each row, truncated at `most`, which is the longest that can be chosen."""
    lengths = [length for length in LENGTHS if length < most]
    return next((length for length in lengths if np.mean(needed <= length) >= WHOLE), most)
