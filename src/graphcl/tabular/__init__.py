"""Reads tables (files, databases, queries) into a graph or a store."""

from graphcl.tabular.build import build_store, load_tables, read_tables

__all__ = ["build_store", "load_tables", "read_tables"]
