"""Kernels of Triton for GPUs, and whether Triton works on this machine's."""
