"""The performance-critical loops, on plain tensors."""
