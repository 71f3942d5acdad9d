"""Builds the bundled Cora, Citeseer and Pubmed from their raw files.

usage: python scripts/build_planetoid.py RAW_FOLDER

RAW_FOLDER holds `cora/` (cora.content, cora.cites, public_split.csv), `citeseer/` and `pubmed/`
(ind.NAME.* of the Planetoid distribution). The output is byte-for-byte reproducible.

Planetoid's raw files are Python 2 pickles of NumPy and SciPy arrays. A pickle can run any
code, so they are read by an unpickler that admits only the names that such files use.
"""

import collections
import csv
import io
import pickle
import pickletools
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import DatasetError
from graphcl.graphs.graph import Graph

BUNDLED = Path(__file__).parents[1] / "src/graphcl/datasets/bundled"
CORA_CLASSES = (
    "Theory",
    "Reinforcement_Learning",
    "Genetic_Algorithms",
    "Neural_Networks",
    "Probabilistic_Methods",
    "Case_Based",
    "Rule_Learning",
)  # in Planetoid's order


def build(name: str, raw: Path) -> Path:
    """Writes one bundled graph: each edge once, features as CSR, masks as node numbers."""
    arrays = read_cora(raw / name) if name == "cora" else read_planetoid(raw / name, name)
    graph = Graph.from_edge_index(name=name, **arrays)
    edges = graph.edge_index()
    binary = bool((graph.x.data == 1).all())
    parts = {
        "edge_index": edges[:, edges[0] < edges[1]].astype(np.int32),
        "x_indptr": graph.x.indptr.astype(np.int32),
        "x_indices": graph.x.indices.astype(np.int16),
        "x_data": graph.x.data.astype(np.uint8 if binary else np.float32),
        "x_shape": np.array(graph.x.shape, dtype=np.int64),
        "y": graph.y.astype(np.int8),
        **{
            mask: np.flatnonzero(getattr(graph, mask)).astype(np.int32)
            for mask in ("train_mask", "val_mask", "test_mask")
        },
    }
    path = BUNDLED / f"{name}.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for key, array in parts.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{key}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, buffer.getvalue())
    print(f"{path.name}: {graph}, {path.stat().st_size:,} bytes")
    return path


def read_planetoid(folder: Path, name: str) -> dict[str, Any]:
    """Reads the eight ``ind.NAME.*`` files of Yang et al.

    The rows of ``allx`` come first. ``test.index`` gives the row number of each test node. Numbers
    missing from that index (15 in Citeseer) are nodes without features or labels. They are kept,
    with an all-zero row and the label −1.
    """
    part = {
        suffix: load_arrays(folder / f"ind.{name}.{suffix}")
        for suffix in ("allx", "tx", "ally", "ty", "y", "graph")
    }
    test = np.loadtxt(folder / f"ind.{name}.test.index", dtype=np.int64)
    num_known, num_train = part["allx"].shape[0], len(part["y"])
    num_nodes = int(test.max()) + 1
    known = scipy.sparse.coo_array(part["allx"])
    tested = scipy.sparse.coo_array(part["tx"])
    rows = np.concatenate([known.coords[0], test[tested.coords[0]]])
    columns = np.concatenate([known.coords[1], tested.coords[1]])
    values = np.concatenate([known.data, tested.data])
    x = scipy.sparse.coo_array((values, (rows, columns)), shape=(num_nodes, known.shape[1])).tocsr()
    y = np.full(num_nodes, -1, dtype=np.int64)
    y[:num_known] = _class_numbers(part["ally"])
    y[test] = _class_numbers(part["ty"])
    edges = [(int(u), int(v)) for u, around in part["graph"].items() for v in around]
    return {
        "edge_index": np.array(edges, dtype=np.int64).T,
        "x": x,
        "y": y,
        "train_mask": np.arange(num_train),
        "val_mask": np.arange(num_train, num_train + 500),
        "test_mask": test,
    }


def read_cora(folder: Path) -> dict[str, Any]:
    """Reads the original ``cora.content`` and ``cora.cites`` in Planetoid's order and split."""
    with (folder / "public_split.csv").open(newline="") as file:
        placed = {
            row["paper_id"]: (int(row["planetoid_index"]), row["split"])
            for row in csv.DictReader(file)
        }
    position = {paper: index for paper, (index, _) in placed.items()}
    x = np.zeros((len(placed), 1433), dtype=np.float32)
    y = np.full(len(placed), -1, dtype=np.int64)
    for line in (folder / "cora.content").read_text().splitlines():
        paper, *words, label = line.split("\t")
        x[position[paper]] = [int(word) for word in words]
        y[position[paper]] = CORA_CLASSES.index(label)
    cites = (line.split() for line in (folder / "cora.cites").read_text().splitlines())
    edges = [(position[cited], position[citing]) for cited, citing in cites]
    return {
        "edge_index": np.array(edges, dtype=np.int64).T,
        "x": scipy.sparse.csr_array(x),
        "y": y,
        **{
            f"{split}_mask": np.array(sorted(i for i, s in placed.values() if s == split))
            for split in ("train", "val", "test")
        },
    }


def _class_numbers(one_hot: Any) -> npt.NDArray[np.int64]:
    if not (one_hot.sum(axis=1) == 1).all():
        # Citeseer's missing nodes are not in `test.index`, so every row here has a class.
        raise DatasetError("a labelled row does not have exactly one class")
    classes: npt.NDArray[np.int64] = np.argmax(one_hot, axis=1).astype(np.int64)
    return classes


_numpy_reconstruct: Any = np.empty(0).__reduce__()[0]  # its module depends on the NumPy version


def _reconstruct(kind: Any, shape: Any, dtype: Any) -> Any:
    """Calls NumPy's function, only for empty arrays: a real pickle needs no others."""
    if kind is not np.ndarray or shape != (0,):
        raise pickle.UnpicklingError(f"an array of shape {str(shape)[:40]} without data")
    return _numpy_reconstruct(kind, shape, dtype)


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("scipy.sparse.csr", "csr_matrix"): scipy.sparse.csr_matrix,
    ("scipy.sparse._csr", "csr_matrix"): scipy.sparse.csr_matrix,
    ("collections", "defaultdict"): collections.defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not an array") from None


def _check_numbers(data: bytes) -> None:
    """Refuses memo numbers above the file's size: Python would allocate memory up to them."""
    for opcode, number, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(number or 0) > len(data):
            raise pickle.UnpicklingError(f"memo number {number} in {len(data)} bytes")


def load_arrays(path: Path) -> Any:
    """Returns the arrays pickled in `path`.

    Raises:
        DatasetError: the file is damaged, or names anything but arrays, dicts and lists.
    """
    try:
        data = path.read_bytes()
        _check_numbers(data)
        found = _ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()
        if scipy.sparse.issparse(found):
            found.check_format(full_check=True)  # SciPy's loops do not check indices
        return found
    except FileNotFoundError:
        raise DatasetError(f"{path}: no such file") from None
    except Exception as error:  # a damaged pickle can raise anything at all
        raise DatasetError(f"{path}: not a pickle of arrays ({error})") from None


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for dataset in ("cora", "citeseer", "pubmed"):
        build(dataset, Path(sys.argv[1]))
