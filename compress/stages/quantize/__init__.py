"""`compress quantize`: quantizes matrices and tables, with calibration, a sensitivity scan and fallback."""
