"""Reads tables (files, databases, queries) into a graph or a store."""
