"""Names that an exported file is used by: of its inputs, and of its dynamic dimensions."""

IDS, MASK, SEGMENTS = "input_ids", "attention_mask", "token_type_ids"
BATCH, LENGTH = "batch", "length"
