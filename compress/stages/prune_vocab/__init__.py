"""`compress prune-vocab`: removes tokens that a corpus does not need from the tokenizer and the embedding tables."""
