"""Bytes on disk: read with suspicion, written whole or not at all."""
