"""A model folder as a file for another runtime."""
