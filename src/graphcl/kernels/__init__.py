"""The hot loops on plain tensors."""
