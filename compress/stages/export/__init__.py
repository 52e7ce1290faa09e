"""Stage: write the ONNX file of a finished model beside its weights."""
