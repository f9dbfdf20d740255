"""TensorRT 8.6 to 11."""
