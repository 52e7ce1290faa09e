"""Turn a trained encoder into one that shares its layers and factorizes its embeddings."""
