"""Two of every four weights set to zero (2:4), for GPUs that skip them, and recovery by distillation."""
