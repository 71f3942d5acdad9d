"""Finds the source, target and id columns: as named by the caller, or guessed from their names.

The callers report every guess.
"""

from collections.abc import Iterable, Sequence

from graphcl.errors import GraphError, suggestion
from graphcl.tabular.sources import Source

SOURCES = ("source", "src", "from", "source_id", "from_id", "u", "node1", "node_1", "start", "head")
TARGETS = ("target", "dst", "to", "target_id", "to_id", "v", "node2", "node_2", "end", "tail")
IDS = ("id", "node_id", "nodeid", "node", "key", "name")
LABELS = ("label", "labels", "y", "class", "target")
SPLITS = ("split", "fold", "set", "partition")
WEIGHTS = ("weight", "w", "value", "weights")


def find(source: Source, name: str, option: str) -> str:
    """Returns the column called `name`, or the only one that differs from it in case alone."""
    if name in source.columns:
        return name
    lowered = [
        column for column in source.columns if column.strip().lower() == name.strip().lower()
    ]
    if len(lowered) == 1:
        return lowered[0]
    near = suggestion(name, source.columns)
    raise GraphError(f"{source.name}: {option}: no column {name!r}; it has {_listed(source)}{near}")


def find_all(source: Source, names: Iterable[str], option: str) -> tuple[str, ...]:
    """Returns the columns with these names, as `find` does."""
    return tuple(find(source, name, option) for name in names)


def ends(source: Source, first: str | None, second: str | None) -> tuple[str, str, str]:
    """Returns the columns of an edge's two ends, and how they were found.

    A column that is not given is guessed from its name; failing that, the first columns are taken.
    """
    if len(source.columns) < 2:
        raise GraphError(
            f"{source.name}: has one column ({_listed(source)}); an edge needs two ends; "
            "check that the delimiter is a comma, tab, semicolon or bar"
        )
    start = find(source, first, "--source-column") if first else None
    end = find(source, second, "--target-column") if second else None
    how = "given" if start and end else "guessed by name"
    start = start or named(source, SOURCES, excluding=end)
    end = end or named(source, TARGETS, excluding=start)
    if start is None or end is None:
        how = "guessed: the first two columns"
        rest = [name for name in source.columns if name not in (start, end)]
        start = start or rest.pop(0)
        end = end or rest.pop(0)
    if start == end:
        raise GraphError(f"{source.name}: column {start!r} cannot be both ends of an edge")
    return start, end, how


def identity(source: Source, name: str | None) -> tuple[str, str]:
    """Returns the column of the nodes' ids, and how it was found."""
    if name:
        return find(source, name, "--id-column"), "given"
    guessed = named(source, IDS)
    if guessed:
        return guessed, "guessed by name"
    return next(iter(source.columns)), "guessed: the first column"


def named(source: Source, candidates: Sequence[str], excluding: str | None = None) -> str | None:
    """Returns the column whose name comes first among the candidates, or None."""
    known = {name.strip().lower(): name for name in source.columns if name != excluding}
    return next((known[name] for name in candidates if name in known), None)


def _listed(source: Source) -> str:
    names = [repr(name) for name in source.columns]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
