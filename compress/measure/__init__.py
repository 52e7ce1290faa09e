"""Figures of model folders: quality, size, latency, memory, calibration."""
