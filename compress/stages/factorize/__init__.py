"""Matrices of the layers as products of two thin ones: fewer bytes, and recovery by distillation."""
