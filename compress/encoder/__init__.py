"""One encoder, driven by its config."""
