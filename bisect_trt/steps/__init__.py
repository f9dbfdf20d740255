"""Steps that several commands take: the minimal case, arbitration, rounding, shapes, the reproducer."""
