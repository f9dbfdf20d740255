"""ONNX's reference evaluator: a second opinion, written in NumPy."""
