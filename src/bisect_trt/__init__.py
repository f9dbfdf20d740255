"""Find why an ONNX model that runs right in ONNX Runtime runs wrong in TensorRT."""

__version__ = "0.1.0"
