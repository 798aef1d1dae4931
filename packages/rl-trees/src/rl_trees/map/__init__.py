"""Maps from rows of tensors to rows of tensors."""
