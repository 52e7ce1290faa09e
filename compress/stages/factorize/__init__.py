"""Low-rank factorization of the layers' matrices, with recovery training by distillation."""
