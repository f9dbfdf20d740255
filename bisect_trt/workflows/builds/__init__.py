"""Builds and runs that come and go: how often they fail, and what the bad ones chose; begin with ``repeat.py``."""
