"""Stage: remove attention heads, feed-forward neurons and channels of hidden states."""
