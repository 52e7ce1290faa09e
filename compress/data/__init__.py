"""From files and generated corpora to batches."""
