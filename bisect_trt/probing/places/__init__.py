"""Where probes run: other interpreters, environments with other releases of packages."""
