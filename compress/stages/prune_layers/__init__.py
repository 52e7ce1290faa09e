"""Stage: remove whole layers of an encoder."""
