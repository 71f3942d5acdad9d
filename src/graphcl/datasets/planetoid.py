"""Cora, Citeseer and Pubmed (Sen et al. 2008; public split of Yang et al. 2016).

The three graphs ship inside the package as `.npz` files; `scripts/build_planetoid.py` made them
from the raw files with the readers below.
"""

import csv
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.datasets.unpickling import load_arrays
from graphcl.errors import DatasetError
from graphcl.graphs.graph import Graph
from graphcl.graphs.graph_file import read_arrays

CORA_CLASSES = (
    "Theory",
    "Reinforcement_Learning",
    "Genetic_Algorithms",
    "Neural_Networks",
    "Probabilistic_Methods",
    "Case_Based",
    "Rule_Learning",
)  # in Planetoid's order


def load_bundled(name: str) -> Graph:
    """Returns one of the three bundled graphs."""
    with resources.as_file(resources.files("graphcl.datasets") / f"bundled/{name}.npz") as path:
        return Graph.from_edge_index(name=name, **read_arrays(path))


def read_planetoid(folder: Path, name: str) -> dict[str, Any]:
    """Reads the eight ``ind.NAME.*`` files of Yang et al.

    Rows are ``allx``, then the test rows, put in place by ``test.index``. Numbers missing from
    that index (15 in Citeseer) are nodes without features or labels: they stay, with an all-zero
    row and the label −1.
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
        # Citeseer's gaps are absent from `test.index`, so every row that is present has a class.
        raise DatasetError("a labelled row does not have exactly one class")
    classes: npt.NDArray[np.int64] = np.argmax(one_hot, axis=1).astype(np.int64)
    return classes
