"""The paper's tables: its figures, ours beside them, and how both are shown."""
