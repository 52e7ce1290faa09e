"""One file per task kind: columns, encoding, collation, metrics, decoding."""
