"""What a model loses with each part cut or rounded."""
