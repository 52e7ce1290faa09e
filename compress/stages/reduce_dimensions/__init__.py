"""Stage: fewer dimensions for the vectors of an embedding model."""
