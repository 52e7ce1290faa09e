"""Plans trained: recovery, quantization in the loop, and settings searched for."""
