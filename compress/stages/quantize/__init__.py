"""Stage: post-training quantization of matrices and embedding tables, with a sensitivity scan."""
