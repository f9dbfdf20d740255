"""Equivalent forms of what runtimes get wrong: small rules, each a pattern and what takes its place."""

from bisect_trt.graph.rewrites.registry import RULES, matches
from bisect_trt.graph.rewrites.view import Fragment, View, splice_in

__all__ = ["RULES", "Fragment", "View", "matches", "splice_in"]
