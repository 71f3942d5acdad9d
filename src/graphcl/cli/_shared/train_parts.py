"""`graphcl train PARTS`: the options of a training over parts, and what it trains on."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from graphcl.cli._shared.parts import describe
from graphcl.errors import ParameterError, require
from graphcl.estimator.choice import AUTO
from graphcl.estimator.parted import PartedData
from graphcl.partitioned.topology import TOPOLOGIES
from graphcl.store.header import is_parts
from graphcl.tabular.options import TableOptions

PANEL = "A store in parts"  # a group of options
CacheOption = Annotated[
    str,
    typer.Option(
        "--cache",
        metavar="BYTES",
        help="Memory of a process for rows of other parts that coming steps need most: 256MB, 1GB.",
        rich_help_panel=PANEL,
    ),
]
TopologyOption = Annotated[
    str,
    typer.Option(
        "--topology",
        metavar="|".join(TOPOLOGIES),
        help="auto: map the edges of other parts where they can be read. asked: ask their owners.",
        rich_help_panel=PANEL,
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="How long a process waits for another before it ends. (default: 300 over parts, "
        "else 1800)",
    ),
]
PATIENCE = 300.0  # seconds
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_bytes(text: str) -> int:
    """Reads ``1000000``, ``256MB`` or ``1.5GiB``.

    Raises:
        ParameterError: it is none of these.
    """
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-zA-Z]{0,3})", text.strip())
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise ParameterError(f"train: --cache must be like 256MB or 1GB; got {text!r}")
    return int(float(found[1]) * unit)


def parse_timeout(seconds: float | None) -> timedelta | None:
    """Returns the time that ``--timeout`` names; None without one."""
    if seconds is None:
        return None
    require(0 < seconds < 10**7, "train", "--timeout", "above 0, in seconds", seconds)
    return timedelta(seconds=seconds)


def parts_to_train(
    graph: str,
    tables: TableOptions,
    *,
    cache: str,
    topology: str,
    timeout: timedelta | None,
    recipe: str | None,
) -> PartedData | None:
    """Returns the graph in parts that a training is of; None if `graph` is something else.

    A store in one part is a store, and trained as one.

    Args:
        graph: as the command line names it.
        tables: options for reading tables, which do not go with parts.
        cache: of ``--cache``.
        topology: of ``--topology``.
        timeout: of ``--timeout``.
        recipe: of ``--recipe``; one that is searched for does not go with parts.

    Raises:
        ParameterError: what is given does not go together.
    """
    size = parse_bytes(cache)
    if not is_parts(Path(graph)):
        require(not size, "train", "--cache", "left out unless GRAPH is in parts", cache)
        known = topology == TOPOLOGIES[0]
        require(known, "train", "--topology", "left out unless GRAPH is in parts", topology)
        return None
    require(not tables.given(), "train", "GRAPH", "tables if table options are given", graph)
    require(recipe != AUTO, "train", "--recipe", "left out for a store in parts", recipe)
    patience = timedelta(seconds=PATIENCE) if timeout is None else timeout
    return PartedData(Path(graph), size, topology, patience)


def introduce(data: PartedData) -> str:
    """Returns one line on a graph in parts."""
    return describe(data.parts)
