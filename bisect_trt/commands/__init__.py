"""The commands; each module is one command."""
