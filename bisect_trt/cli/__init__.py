"""The command line: flags to settings, results to exit codes."""
