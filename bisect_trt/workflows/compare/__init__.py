"""Outputs of a target beside the reference's, or saved ones beside each other; begin with ``compare.py``."""
