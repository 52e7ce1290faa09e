"""Ways to choose the layers that stay, one file each."""
