"""Reads graph files of other libraries as tables: GraphML, GML, NetworkX edge lists, SciPy."""

import gzip
import zlib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast
from xml.parsers import expat

import numpy as np

from graphcl.errors import GraphError, MissingExtraError
from graphcl.tabular.matrix import read_matrix


@dataclass(frozen=True)
class GraphTables:
    """The content of a file as Arrow tables: `edges` (source, target, …) and `nodes` (id, …)."""

    edges: Any
    nodes: Any = None


def is_networkx_edge_list(path: Path, kind: str) -> bool:
    """Returns whether a text file has lines as `networkx.write_edgelist` writes: ``u v {…}``."""
    if kind in (".csv", ".tsv"):
        return False
    try:
        with _open(path) as file:
            for line in file:
                if not line.lstrip().startswith((b"#", b"%")) and line.strip():
                    return line.rstrip().endswith(b"}")
    except (OSError, EOFError, zlib.error):
        return False  # the function that reads the file reports what is wrong
    return False


def read_edge_list(path: Path) -> GraphTables:
    """Reads a file that `networkx.write_edgelist` wrote; ids are text."""
    networkx = _networkx(path)
    kind = networkx.MultiGraph  # keeps repeated rows, which are counted later
    return _tables(_read(path, lambda file: networkx.read_edgelist(file, create_using=kind)))


def read_graph(path: Path, kind: str) -> GraphTables:
    """Reads GraphML or GML; node and edge attributes become columns.

    The id of a GML node is its label if labels are unique, else its number.
    """
    networkx = _networkx(path)
    if kind == ".graphml":
        _refuse_doctype(path)
        return _tables(_read(path, networkx.read_graphml))
    try:
        graph = _read(path, networkx.read_gml)
    except GraphError as error:
        if "label" not in str(error):
            raise
        graph = _read(path, lambda file: networkx.read_gml(file, label="id"))
    return _tables(graph)


def read_adjacency(path: Path) -> GraphTables:
    """Reads a square SciPy matrix (`scipy.sparse.save_npz`); ids are the row numbers."""
    import pyarrow

    coo = read_matrix(path)
    if coo.shape[0] != coo.shape[1]:
        raise GraphError(f"{path}: the adjacency must be square; got {coo.shape}")
    if coo.dtype.kind not in "biuf":
        raise GraphError(f"{path}: the adjacency must hold numbers; got dtype {coo.dtype}")
    present = coo.data != 0
    edges = {
        "source": coo.coords[0][present].astype(np.int64),
        "target": coo.coords[1][present].astype(np.int64),
        "value": coo.data[present].astype(np.float64),
    }
    nodes = {"id": np.arange(coo.shape[0], dtype=np.int64)}
    return GraphTables(pyarrow.table(edges), pyarrow.table(nodes))


def _networkx(path: Path) -> Any:
    try:
        import networkx
    except ImportError as error:
        raise MissingExtraError(f"reading {path.name}", "networkx") from error
    return networkx


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return cast("IO[bytes]", gzip.open(path) if zipped else path.open("rb"))


def _read(path: Path, reader: Any) -> Any:
    try:
        with _open(path) as file:
            return reader(file)
    except GraphError:
        raise
    except RecursionError:
        raise GraphError(f"{path}: nested too deeply") from None
    # NetworkX's parsers do not wrap errors: a damaged file raises KeyError, TypeError, …
    except Exception as error:
        text = " ".join(str(error).split())[:160] or type(error).__name__
        raise GraphError(f"{path}: not a readable {path.suffix} file ({text})") from None


def _refuse_doctype(path: Path) -> None:
    """Refuses XML that declares a document type, whose entities can expand without end."""

    def refuse(*_: Any) -> None:
        raise GraphError(f"{path}: declares a DOCTYPE, which GraphML does not need; remove it")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    _read(path, parser.ParseFile)


def _tables(graph: Any) -> GraphTables:
    """Returns nodes and edges with their attributes, in the graph's order."""
    nodes = {"id": list(graph.nodes)}
    for name in _attributes(values for _, values in graph.nodes(data=True)):
        nodes["node id" if name == "id" else name] = [
            values.get(name) for _, values in graph.nodes(data=True)
        ]
    listed = list(graph.edges(data=True))
    edges = {"source": [source for source, *_ in listed], "target": [end for _, end, _ in listed]}
    for name in _attributes(values for _, _, values in listed):
        if name not in ("source", "target"):
            edges[name] = [values.get(name) for _, _, values in listed]
    return GraphTables(_arrow(edges), _arrow(nodes))


def _attributes(mappings: Any) -> list[str]:
    return [str(name) for name in dict.fromkeys(chain.from_iterable(mappings))]


def _arrow(columns: dict[str, list[Any]]) -> Any:
    import pyarrow

    arrays = {}
    for name, values in columns.items():
        # An Arrow column has one type: mixed or nested values become text.
        kinds = {type(value) for value in values} - {type(None)}
        if (kinds and not kinds <= {int, float, bool, str}) or (str in kinds and len(kinds) > 1):
            values = [None if value is None else str(value) for value in values]
        try:
            arrays[name] = pyarrow.array(values)
        except (pyarrow.ArrowException, OverflowError):  # an integer that needs more than 64 bits
            arrays[name] = pyarrow.array([None if v is None else str(v) for v in values])
        if arrays[name].type == pyarrow.null():
            kind = pyarrow.string() if name in ("id", "source", "target") else pyarrow.float64()
            arrays[name] = arrays[name].cast(kind)
    return pyarrow.table(arrays)
