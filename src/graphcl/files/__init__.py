"""Reads files that may be damaged or hostile, and writes files completely or not at all."""
