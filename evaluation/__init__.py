"""Measuring instruments: tensors and callables in, numbers out. Imports nothing of compress."""
