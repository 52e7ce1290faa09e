"""Stage: prune the vocabulary to what a text needs, and rebuild tokenizer and embedding tables."""
