"""Importance scores for heads, neurons and channels, one file each."""
