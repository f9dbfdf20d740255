"""Runs to watch and to show: read from their folders, and served on this machine alone."""
