"""What an answer costs: bytes, operations, milliseconds, memory."""
