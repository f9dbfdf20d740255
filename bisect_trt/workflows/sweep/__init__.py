"""``sweep``: at which sizes of the inputs the target goes wrong."""
