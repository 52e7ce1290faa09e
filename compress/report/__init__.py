"""Measured models as tables and plots."""
