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

from graphcl.arrays import Array
from graphcl.errors import DatasetError, GraphError
from graphcl.files.arrays import read_npz
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
        return Graph.from_edge_index(
            _edge_index(folder / GRAPH),
            data.pop("feature"),
            data["label"],
            name="reddit",
            **{mask: kinds == kind for mask, kind in SPLITS.items()},
        )
    except GraphError as error:
        raise DatasetError(f"{folder}: {error}") from None


def _edge_index(path: Path) -> Array:
    """Returns the ends of edges; the official file lists its 57 million in both directions."""
    parts = _read(path, ("row", "col", "indptr", "indices"), all_of=False)
    if "row" in parts and "col" in parts:
        rows, columns = parts["row"], parts["col"]
    elif "indptr" in parts and "indices" in parts:
        columns = parts["indices"]
        rows = np.repeat(np.arange(len(parts["indptr"]) - 1), np.diff(parts["indptr"]))
    else:
        raise DatasetError(f"{path}: has neither 'row' and 'col' nor 'indptr' and 'indices'")
    if rows.shape != columns.shape:
        raise DatasetError(f"{path}: {rows.shape} sources and {columns.shape} targets of edges")
    return np.stack([rows, columns])


def _read(path: Path, names: tuple[str, ...], *, all_of: bool = True) -> dict[str, Any]:
    """Reads the arrays `names` of an `.npz` file, never a pickle."""
    if not path.exists():
        raise DatasetError(f"{path}: no such file; {ADVICE}")
    arrays = read_npz(path, names, DatasetError)
    missing = [name for name in names if name not in arrays]
    if missing and all_of:
        raise DatasetError(f"{path}: has no array {missing[0]!r}")
    return arrays
