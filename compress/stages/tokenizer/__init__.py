"""Stage: train a tokenizer."""
