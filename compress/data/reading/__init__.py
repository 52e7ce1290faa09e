"""Data by name: files, folders, the hub, and what their columns are."""
