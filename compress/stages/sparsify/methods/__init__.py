"""How the two of every four weights to remove are chosen, one file each."""
