"""A model made simpler, with the same results; begin with ``sanitize.py``."""
