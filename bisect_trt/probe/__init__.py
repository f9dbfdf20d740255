"""Candidates, checks, verdicts, the journal."""
