"""Removing heads, feed-forward neurons and channels of hidden states."""
