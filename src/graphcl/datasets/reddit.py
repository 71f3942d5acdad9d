"""Reddit (Hamilton et al. 2017): one large graph; nodes are posts, classes are subreddits.

It is read from the two official files, as DGL and PyG distribute them:

- ``reddit_data.npz``: ``feature`` [nodes, 602], ``label`` [nodes], ``node_types`` [nodes] with
  1 for training, 2 for validation and 3 for test;
- ``reddit_graph.npz``: a SciPy matrix: ``row`` and ``col``, or ``indptr`` and ``indices``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.errors import DatasetError, GraphError
from graphcl.files.arrays import read_npz
from graphcl.graphs import validation
from graphcl.graphs.graph import Graph

DATA, GRAPH = "reddit_data.npz", "reddit_graph.npz"
SPLITS = {"train_mask": 1, "val_mask": 2, "test_mask": 3}
ADVICE = f"put the official {DATA} and {GRAPH} there (https://data.dgl.ai/dataset/reddit.zip)"


def find_reddit(folders: Sequence[Path]) -> Path:
    """Returns the first ``FOLDER/reddit`` that contains the official files.

    Raises:
        DatasetError: no folder does; the message says where to put the files.
    """
    for folder in folders:
        if (folder / "reddit" / DATA).exists():
            return folder / "reddit"
    raise DatasetError(f"reddit: not in {folders[0] / 'reddit'}; {ADVICE}")


def load_reddit(folder: Path) -> Graph:
    """Loads Reddit from a folder that contains the two official files.

    Raises:
        DatasetError: a file is missing, damaged, or has other arrays than expected.
    """
    folder = Path(folder)
    data = _read(folder / DATA, ("feature", "label", "node_types"))
    kinds = data["node_types"]
    num_nodes = len(data["feature"])
    if kinds.shape != (num_nodes,) or not np.isin(kinds, list(SPLITS.values())).all():
        raise DatasetError(
            f"{folder / DATA}: node_types must be {num_nodes} numbers 1 (train), 2 (validation) "
            f"or 3 (test); got shape {kinds.shape} with values {np.unique(kinds)[:5]}"
        )
    try:
        x = validation.features(data.pop("feature"))
        y, _ = validation.labels(data["label"], num_nodes)
    except GraphError as error:
        raise DatasetError(f"{folder / DATA}: {error}") from None
    indptr, indices, self_loops = _structure(folder / GRAPH, num_nodes)
    return Graph.from_csr(
        indptr=indptr,
        indices=indices,
        x=x,
        y=y,
        self_loops_removed=self_loops,
        name="reddit",
        **{mask: kinds == kind for mask, kind in SPLITS.items()},
    )


def _structure(path: Path, num_nodes: int) -> tuple[Any, Any, int]:
    """Returns a sorted, symmetric CSR pattern without self-loops.

    The official file lists its 57 million edges in both directions. Unlike
    `Graph.from_edge_index`, this function adds the other direction only if the matrix is not
    symmetric, which saves four gigabytes.
    """
    parts = _read(path, ("row", "col", "indptr", "indices"), all_of=False)
    if "row" in parts and "col" in parts:
        rows, columns = parts["row"], parts["col"]
    elif "indptr" in parts and "indices" in parts:
        columns = parts["indices"]
        rows = np.repeat(np.arange(len(parts["indptr"]) - 1), np.diff(parts["indptr"]))
    else:
        raise DatasetError(f"{path}: has neither 'row' and 'col' nor 'indptr' and 'indices'")
    for name, ends in (("row", rows), ("col", columns)):
        if ends.dtype.kind not in "iu" or ends.shape != rows.shape or ends.ndim != 1:
            raise DatasetError(
                f"{path}: {name} must be a list of node numbers as long as the other; "
                f"got {ends.dtype} of shape {ends.shape}"
            )
        if len(ends) and not (ends.min() >= 0 and ends.max() < num_nodes):
            worst = ends.min() if ends.min() < 0 else ends.max()
            raise DatasetError(f"{path}: {name} names node {worst}; {DATA} has {num_nodes} nodes")
    proper = rows != columns
    self_loops = int(len(proper) - proper.sum())
    ones = np.ones(len(proper) - self_loops, dtype=np.bool_)
    ends = (rows[proper], columns[proper])
    csr = scipy.sparse.coo_array((ones, ends), shape=(num_nodes, num_nodes)).tocsr()
    csr.sum_duplicates()
    mirror = csr.T.tocsr()
    symmetric = np.array_equal(csr.indptr, mirror.indptr)
    if not (symmetric and np.array_equal(csr.indices, mirror.indices)):
        csr = csr + mirror
        csr.sort_indices()
    return csr.indptr.astype(np.int64), csr.indices.astype(np.int64), self_loops


def _read(path: Path, names: tuple[str, ...], *, all_of: bool = True) -> dict[str, Any]:
    """Reads the arrays `names` of an `.npz` file, never a pickle."""
    if not path.exists():
        raise DatasetError(f"{path}: no such file; {ADVICE}")
    arrays = read_npz(path, names, DatasetError)
    missing = [name for name in names if name not in arrays]
    if missing and all_of:
        raise DatasetError(f"{path}: has no array {missing[0]!r}")
    return arrays
