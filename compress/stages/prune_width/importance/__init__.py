"""Which heads, neurons and channels are needed: one file each."""
