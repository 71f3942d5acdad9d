"""Reads what other libraries write: GraphML, GML and NetworkX edge lists, matrices of NumPy, SciPy.

A matrix is an adjacency, or it has the features of nodes.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast
from xml.parsers import expat

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, import_extra
from graphcl.files.arrays import read_npy, read_npz
from graphcl.graphs import validation
from graphcl.graphs.npz import unused_arrays

_BLOCK_ROWS = 1 << 14  # that are taken apart at a time
_MASKS = ("train_mask", "val_mask", "test_mask")
# The arrays that `scipy.sparse.save_npz` writes for each format, in the constructors' order.
_PARTS = {"csr": ("data", "indices", "indptr"), "csc": ("data", "indices", "indptr")}
_PARTS["coo"] = ("data", "row", "col")


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
    return import_extra("networkx", feature=f"reading {path.name}", extra="networkx")


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


@dataclass(frozen=True)
class NodeMatrix:
    """A feature matrix and the optional arrays from the same file.

    Attributes:
        x: float32 ``[rows, features]``, dense or CSR.
        node_ids: ids of the rows; None if the row numbers are the ids.
        y: class numbers, or None.
        masks: the masks of the split, by name.
        note: what is said of the file; mostly nothing.
    """

    x: Any
    node_ids: npt.NDArray[Any] | None = None
    y: npt.NDArray[np.int64] | None = None
    masks: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    note: str = ""
    class_names: tuple[str, ...] = ()

    def id_table(self) -> Any:
        """Returns the ids as an Arrow table with one column."""
        import pyarrow

        ids = np.arange(self.x.shape[0]) if self.node_ids is None else self.node_ids
        if ids.dtype.kind == "O":
            ids = np.array([str(name) for name in ids])
        return pyarrow.table({"id": pyarrow.array(ids.tolist())})


@dataclass(frozen=True)
class MatrixFeatures:
    """The features of a matrix, as a part of a graph's features.

    Attributes:
        x: float32 ``[rows, features]``, dense or CSR.
    """

    x: Any

    @property
    def width(self) -> int:
        """Number of features."""
        return int(self.x.shape[1])

    @property
    def filled(self) -> int:
        """Number of values that are not zero, at most."""
        return int(self.x.nnz if scipy.sparse.issparse(self.x) else self.x.size)

    def fill(self, x: npt.NDArray[np.float32]) -> None:
        """Fills `x`, zeros with at least as many rows as the matrix."""
        x[: self.x.shape[0]] = self.x.toarray() if scipy.sparse.issparse(self.x) else self.x

    def entries(
        self,
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
        """Yields rows, columns and values that are not zero; rows ascend in each part."""
        for first in range(0, self.x.shape[0], _BLOCK_ROWS):
            block = scipy.sparse.csr_array(self.x[first : first + _BLOCK_ROWS])
            rows = np.repeat(np.arange(first, first + block.shape[0]), np.diff(block.indptr))
            yield rows, block.indices.astype(np.int64), block.data


def read_features(given: Any, node_ids: Any = None) -> NodeMatrix | None:
    """Reads a feature matrix; returns None if `given` is neither one nor an array file.

    Args:
        given: a file's name, or from Python a matrix of NumPy or SciPy.
        node_ids: the ids of the rows of a matrix from Python.
    """
    if isinstance(given, str):
        matrix = _read_file(given)
    elif isinstance(given, np.ndarray) or scipy.sparse.issparse(given):
        matrix = NodeMatrix(validation.features(given))
    else:
        return None
    if node_ids is None or matrix is None:
        return matrix
    ids = np.asarray(node_ids)
    if ids.dtype.kind == "O":
        ids = np.array([str(one) for one in ids.reshape(-1)]).reshape(ids.shape)
    return replace(matrix, node_ids=_checked_ids(ids, matrix.x.shape[0], "nodes"))


def _read_file(text: str) -> NodeMatrix | None:
    """Reads a feature matrix; returns None if `text` does not name an array file.

    An `.npz` file comes from `scipy.sparse.save_npz`, or contains ``x`` (or a single array) and
    optionally ``node_ids``, ``y`` and masks.
    """
    path = Path(text)
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".npz"):
        return None
    if not path.is_file():
        raise GraphError(f"{path}: no such file")
    arrays = (
        {"x": read_npy(path, GraphError)} if suffix == ".npy" else read_npz(path, None, GraphError)
    )
    if _is_scipy(arrays):
        return NodeMatrix(_features(path, read_matrix(path)))
    x = arrays.pop("x") if "x" in arrays else None
    if x is None and len(arrays) == 1:
        x = arrays.popitem()[1]
    if x is None:
        raise GraphError(f"{path}: has no array 'x'; it has {', '.join(sorted(arrays)) or 'none'}")
    unknown = sorted(arrays.keys() - {"node_ids", "y", *_MASKS})
    note = unused_arrays(path, unknown, ("x", "node_ids", "y", *_MASKS)) if unknown else ""
    x = _features(path, x)
    rows = x.shape[0]
    masks = validation.masks({name: arrays.get(name) for name in _MASKS}, rows)
    ids = arrays.get("node_ids")
    if ids is not None:
        _checked_ids(ids, rows, str(path))
    y, names = validation.labels(arrays.get("y"), rows)
    given = {name: mask for name, mask in masks.items() if mask is not None}
    return NodeMatrix(x, ids, y, given, note, names)


def _checked_ids(ids: npt.NDArray[Any], rows: int, where: str) -> npt.NDArray[Any]:
    if ids.shape != (rows,) or ids.dtype.kind not in "iuU":
        raise GraphError(
            f"{where}: node_ids: expected {rows} integers or strings; got {ids.dtype} {ids.shape}"
        )
    return ids


def read_matrix(path: Path) -> scipy.sparse.coo_array:
    """Reads a file that `scipy.sparse.save_npz` wrote, and checks the matrix's indices."""
    arrays = read_npz(path, None, GraphError)
    if not _is_scipy(arrays):
        raise GraphError(f"{path}: is not a SciPy matrix; write one with scipy.sparse.save_npz")
    kind = arrays["format"].reshape(-1)[:1].astype(str)
    name = str(kind[0]) if len(kind) else ""
    if name not in _PARTS:
        raise GraphError(f"{path}: a SciPy matrix in format {name[:10]!r}; save its .tocsr()")
    missing = [part for part in _PARTS[name] if part not in arrays]
    if missing:
        raise GraphError(f"{path}: damaged: the SciPy matrix has no array {missing[0]!r}")
    data, first, second = (arrays[part] for part in _PARTS[name])
    try:
        height, width = (int(size) for size in arrays["shape"])
        shape = (height, width)
        if name == "coo":
            return scipy.sparse.coo_array((data, (first, second)), shape=shape)
        build = scipy.sparse.csr_array if name == "csr" else scipy.sparse.csc_array
        matrix = build((data, first, second), shape=shape)
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, OverflowError, IndexError) as error:
        text = " ".join(str(error).split())[:120]
        raise GraphError(f"{path}: damaged: not a SciPy matrix ({text})") from None
    return matrix.tocoo()


def _is_scipy(arrays: dict[str, npt.NDArray[Any]]) -> bool:
    """Returns whether the arrays of an `.npz` file are those of `scipy.sparse.save_npz`."""
    return {"format", "shape", "data"} <= arrays.keys()


def _features(path: Path, x: Any) -> Any:
    try:
        return validation.features(x)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None
