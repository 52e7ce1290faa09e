"""Text to tokens: tokenizers, masking, noise, words, windows."""
