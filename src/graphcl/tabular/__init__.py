"""Reads tables (files, databases, queries) into a graph or a store."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphcl.tabular.build import build_store, load_tables, read_tables

__all__ = ["build_store", "load_tables", "read_tables"]


def __getattr__(name: str) -> Any:
    # Fetched on first use: commands take the options of tables long before they read any.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("graphcl.tabular.build"), name)
