"""Encoders prepared for inference, and what is measured of them on real input."""
