"""How shared weights are initialized, one file each."""
