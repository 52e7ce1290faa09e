"""What a fitted model was measured to be."""
