"""The modules of an encoder, and how sequences lie in its tensors."""
