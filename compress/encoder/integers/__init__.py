"""Quantized encoders: fake quantization while training, integers when they answer."""
