"""Example: a ViT whose decomposed LayerNorms overflow in fp16."""
