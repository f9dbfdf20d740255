"""A tool from ONNX to ONNX: a simplifier, an optimizer, a quantizer, a converter."""
