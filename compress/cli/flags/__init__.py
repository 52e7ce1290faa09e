"""What the flags of the commands that change a model mean in a recipe."""
