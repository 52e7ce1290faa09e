"""`compress analyze`: what the layers of a model compute."""
