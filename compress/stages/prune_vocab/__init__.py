"""`compress prune-vocab`: a vocabulary cut to what a corpus needs, the tokenizer rebuilt, the tables with it."""
