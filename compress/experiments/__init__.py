"""Experiments of several runs: seeds, sweeps, criterion comparisons, and the overfitting check."""
