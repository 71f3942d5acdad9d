"""Stores: graphs on disk, memory-mapped."""
