"""Processes in which models and checks run, and what ends them."""
