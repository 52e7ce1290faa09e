"""`compress quantize`: float matrices and tables become integers, observed, scanned and chosen by what they cost."""
