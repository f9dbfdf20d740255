"""Pure algorithms over units and verdicts."""
