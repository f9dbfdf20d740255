"""The rooms of a run: the call, the model under test, its check, its places and its record."""
