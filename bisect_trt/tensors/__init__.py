"""Inputs, activations on disk, comparison."""
