"""The embedded grammar: corpora and labelled tasks without a download."""
