"""A model folder that answers texts."""
