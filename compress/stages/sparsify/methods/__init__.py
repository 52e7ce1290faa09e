"""How the two of every four weights that go are chosen, one file each."""
