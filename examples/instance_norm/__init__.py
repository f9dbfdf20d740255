"""Example: InstanceNorm whose sum of squares overflows in fp16."""
