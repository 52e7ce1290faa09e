"""Stage: fine-tune an encoder on labelled text."""
