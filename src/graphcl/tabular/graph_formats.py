"""Reads what other libraries write: GraphML, GML and NetworkX edge lists, matrices of NumPy, SciPy.

A matrix is an adjacency, or it has the features of nodes.
"""

import gzip
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast
from xml.parsers import expat

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, demand, import_extra
from graphcl.files.arrays import read_npy, read_npz
from graphcl.graphs import validation
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.npz import unused_arrays
from graphcl.graphs.relation import NODE
from graphcl.store.header import MASKS

_FORMATS = ("csr", "csc", "coo")  # formats of SciPy


GraphTables = tuple[Any, Any]  # columns of edges (source, target, …) and of nodes (id, …)


def read_graph(path: Path) -> GraphTables:
    """Reads GraphML or GML; node and edge attributes become columns.

    The id of a GML node is its label if labels are unique, else its number.
    """
    networkx = import_extra("networkx", feature=f"reading {path.name}", extra="networkx")
    if ".graphml" in path.name.lower():
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
    coo = read_matrix(path)
    demand(coo.shape[0] == coo.shape[1], f"{path}: the adjacency must be square; got {coo.shape}")
    demand(
        coo.dtype.kind in "biuf",
        f"{path}: the adjacency must hold numbers; got dtype {coo.dtype}",
    )
    present = coo.data != 0
    edges = {
        "source": coo.coords[0][present].astype(np.int64),
        "target": coo.coords[1][present].astype(np.int64),
        "value": coo.data[present].astype(np.float64),
    }
    nodes = {"id": np.arange(coo.shape[0], dtype=np.int64)}
    return edges, nodes


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
    nodes = {"id": list(graph.nodes)} | _attributes([one for _, one in graph.nodes(data=True)])
    listed = list(graph.edges(data=True))
    edges = {"source": [one for one, *_ in listed], "target": [one for _, one, _ in listed]}
    own = _attributes([one for *_, one in listed])
    return _arrow(edges | own | edges), _arrow(nodes)


def _attributes(given: list[dict[Any, Any]]) -> dict[str, list[Any]]:
    """Returns a column for each attribute."""
    return {
        "node id" if name == "id" else str(name): [one.get(name) for one in given]
        for name in dict.fromkeys(chain.from_iterable(given))
    }


def _arrow(columns: dict[str, list[Any]]) -> Any:
    import pyarrow

    arrays = {}
    for name, values in columns.items():
        # An Arrow column has one type: mixed or nested values become text.
        kinds = {type(value) for value in values} - {type(None)}
        simple = kinds <= {int, float, bool} or kinds == {str}
        try:
            arrays[name] = pyarrow.array(values if simple else [])
        except (pyarrow.ArrowException, OverflowError):  # an integer that needs more than 64 bits
            simple = False
        if not simple:
            arrays[name] = pyarrow.array(
                [None if value is None else str(value) for value in values]
            )
        if not kinds:
            empty = pyarrow.string() if name in ("id", "source", "target") else pyarrow.float64()
            arrays[name] = arrays[name].cast(empty)
    return arrays


def read_features(given: Any, node_ids: Any = None) -> tuple[Nodes, str] | None:
    """Reads a feature matrix; returns None if `given` is neither one nor an array file.

    Args:
        given: a file's name, or from Python a matrix of NumPy or SciPy. An `.npz` file comes from
            `scipy.sparse.save_npz`, or contains ``x`` (or a single array) and optionally
            ``node_ids``, ``y`` and masks.
        node_ids: the ids of the rows of a matrix from Python.

    Returns:
        The nodes, and what is said of the file; mostly nothing.
    """
    where, note = "", ""
    if isinstance(given, str) and Path(given).suffix.lower() in (".npy", ".npz"):
        arrays, note = _read_arrays(Path(given))
        where = f"{given}: "
    elif isinstance(given, np.ndarray) or scipy.sparse.issparse(given):
        arrays = {"x": given}
    else:
        return None
    if node_ids is not None:
        arrays["node_ids"] = node_ids
    try:
        nodes = Nodes(NODE, **validation.checked_nodes(arrays))
    except GraphError as error:
        raise GraphError(f"{where}{error}") from None
    demand(nodes.splits is None, f"{where}masks: several splits; a table of nodes has one")
    return nodes, note


def _read_arrays(path: Path) -> tuple[dict[str, Any], str]:
    """Returns the arrays of a file that are used, and a note on others."""
    demand(path.is_file(), f"{path}: no such file")
    if path.suffix.lower() == ".npy":
        return {"x": read_npy(path, GraphError)}, ""
    arrays: dict[str, Any] = read_npz(path, None, GraphError)
    if _is_scipy(arrays):
        return {"x": read_matrix(path)}, ""
    if "x" not in arrays and len(arrays) == 1:
        arrays = {"x": arrays.popitem()[1]}
    demand("x" in arrays, f"{path}: has no array 'x'; it has {', '.join(sorted(arrays)) or 'none'}")
    known = ("x", "node_ids", "y", *MASKS)
    unknown = sorted(arrays.keys() - set(known))
    note = unused_arrays(path, unknown, known) if unknown else ""
    return {name: arrays[name] for name in known if name in arrays}, note


def read_matrix(path: Path) -> scipy.sparse.coo_array:
    """Reads a file that `scipy.sparse.save_npz` wrote, and checks the matrix's indices."""
    arrays = read_npz(path, None, GraphError)
    demand(
        _is_scipy(arrays),
        f"{path}: is not a SciPy matrix; write one with scipy.sparse.save_npz",
    )
    kind = arrays["format"].reshape(-1)[:1].astype(str)
    name = str(kind[0]) if len(kind) else ""
    demand(name in _FORMATS, f"{path}: a SciPy matrix in format {name[:10]!r}; save its .tocsr()")
    try:
        matrix = scipy.sparse.load_npz(path)
        if name != "coo":
            matrix.check_format(full_check=True)
    except Exception as error:  # whatever SciPy does with arrays that are damaged
        text = " ".join(str(error).split())[:120]
        raise GraphError(f"{path}: damaged: not a SciPy matrix ({text})") from None
    return scipy.sparse.coo_array(matrix)


def _is_scipy(arrays: dict[str, npt.NDArray[Any]]) -> bool:
    """Returns whether the arrays of an `.npz` file are those of `scipy.sparse.save_npz`."""
    return {"format", "shape", "data"} <= arrays.keys()
