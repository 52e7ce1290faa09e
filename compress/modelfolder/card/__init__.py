"""The model card, README.md, part by part."""
