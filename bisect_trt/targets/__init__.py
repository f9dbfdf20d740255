"""What runs a model: ONNX Runtime, TensorRT."""
