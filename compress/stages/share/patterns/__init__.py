"""Which layers share their matrices, one file each."""
