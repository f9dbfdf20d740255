"""The fewest nodes that have to stay in fp32 for the rest to run in fp16 or bf16; begin with ``precision.py``."""
