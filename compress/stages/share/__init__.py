"""Stage: share parameters across layers and factorize the embeddings of a trained encoder."""
