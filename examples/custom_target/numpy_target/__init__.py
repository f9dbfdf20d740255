"""NumPy as a target of bisect-trt: an example."""
