"""Training checks for distillation, one file each; each reports at most one finding."""
