"""OpenVINO."""
