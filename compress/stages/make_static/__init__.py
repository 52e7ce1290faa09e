"""Stage: a static model of token vectors from an embedding model."""
