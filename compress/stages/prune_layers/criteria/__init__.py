"""Criteria that choose which layers are kept, one file each."""
