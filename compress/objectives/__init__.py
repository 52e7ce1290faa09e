"""What a stage minimises: one file each, usable by every stage."""
