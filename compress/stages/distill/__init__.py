"""Stage: distil a teacher into a student."""
