"""Names that an exported file is used by: of its inputs, of its dynamic dimensions, and in its metadata."""

IDS, MASK, SEGMENTS = "input_ids", "attention_mask", "token_type_ids"
BATCH, LENGTH = "batch", "length"
INT8_PRODUCTS = "compress.int8_products"
"""Metadata key: on which processors the file's integer products are exact."""
EXACT = "exact with and without VNNI"
"""Its value: no product overflows the 16 bits in which kernels for AVX2 add two of them."""
