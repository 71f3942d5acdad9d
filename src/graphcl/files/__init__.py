"""Reads files that may be damaged or hostile, and writes files completely or not at all."""

RUN_CONFIG = "config.toml"  # a folder that has it is a run
