"""Names of the dynamic dimensions of an exported file."""

BATCH, LENGTH = "batch", "length"
