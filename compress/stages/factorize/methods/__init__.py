"""How a matrix is replaced by two low-rank factors, one file each."""
