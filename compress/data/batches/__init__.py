"""Encoded rows and the batches that are made of them."""
