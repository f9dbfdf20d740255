"""ONNX Runtime as a target, and as the reference."""
