"""The fewest quantized groups that have to go back to floats for a quantized model to be right; begin with ``bits.py``."""
