"""Benchmarks, run by ``make bench``; see README.md beside this file."""
