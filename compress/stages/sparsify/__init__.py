"""Stage: 2:4 sparsity for GPUs that accelerate it, with recovery training by distillation."""
