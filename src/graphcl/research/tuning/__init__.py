"""The search for a good recipe."""
