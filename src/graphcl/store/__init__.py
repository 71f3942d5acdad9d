"""The store: a graph on disk, memory-mapped."""
