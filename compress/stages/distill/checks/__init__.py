"""What can be wrong with a distillation, one file each: a check looks, and says one line when it finds something."""
