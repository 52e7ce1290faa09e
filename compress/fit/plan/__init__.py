"""Which parts stay, and in how many bits."""
