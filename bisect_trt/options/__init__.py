"""Each option once: its name, type, range, help and group, for the command line and the Python functions alike."""
