"""`compress cascade --exit-layers`: early exits of one model, trained, chosen and certified."""
