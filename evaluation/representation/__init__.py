"""What layers compute, compared: CKA."""
