"""Which parameters fine-tuning trains, one file each."""
