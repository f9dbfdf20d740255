"""The way around a failure: what makes the whole model pass today, with the least loss."""
