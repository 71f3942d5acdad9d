"""The graph container, its checks, its conversion from and to other libraries, and its tensors."""
