"""Several runs under one parent: seeds, sweeps, criteria compared, and the overfitting check."""
