"""The paper's tables and claims: its numbers and ours, and how both are shown."""
