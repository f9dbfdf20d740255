"""ONNX through graphsurgeon."""
