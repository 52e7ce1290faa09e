"""Stage: replace weight matrices of the layers by low-rank factors, with recovery training by distillation."""
