"""Example: masked attention that is NaN in fp16."""
