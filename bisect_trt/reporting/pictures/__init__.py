"""Pictures of how tensors differ, drawn with matplotlib, which is an extra."""
