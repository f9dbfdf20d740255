"""Terminal, JSON, reproducer."""
