"""Stage: drop the least attended tokens between layers, with recovery training by distillation."""
