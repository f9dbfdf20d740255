"""``samples``: which of many inputs fail, what they have in common, and the smallest that still fails."""
