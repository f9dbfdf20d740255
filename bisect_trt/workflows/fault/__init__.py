"""Whose fault a failure is: the target's, the reference's, the precision's, or nobody's, where two roundings tie."""
