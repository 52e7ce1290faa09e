"""Encoders of another shape made from trained ones."""
