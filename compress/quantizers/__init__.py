"""Ways to stand integers for numbers: one kind a file, each with a class `Quantizer` (`contracts.Quantizer`)."""
