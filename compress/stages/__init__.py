"""The stages of a recipe: one folder per kind, and what they share."""
