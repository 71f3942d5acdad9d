"""Result rows: one JSON object per line, each with what is needed to judge it."""

from graphcl.trials.rows import append, provenance, read

__all__ = ["append", "provenance", "read"]
