"""Every tensor of the target beside the reference's; begin with ``layerwise.py``."""
