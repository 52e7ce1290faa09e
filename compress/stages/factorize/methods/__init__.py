"""How a matrix is split into two thin ones, one file each."""
