"""Factorization methods, one file each."""
