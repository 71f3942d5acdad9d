"""Reports to look at, made without training."""

import base64
import zlib

import numpy as np
import pytest

from graphcl.evaluation.splits import Confusion
from graphcl.graphs.nodes import Nodes
from graphcl.reporting.contents import Contents, MapPoints
from graphcl.runs.files import RunConfig
from graphcl.store.reader import MASKS


def made_up(n=300, *, labelled=True, ids=None, name="made up", seed=0, blobs=6) -> Contents:
    """A report's contents of any size: blobs on a map, each node's neighbours its followers."""
    random = np.random.default_rng(seed)
    y = random.integers(0, blobs, n)
    centres = random.normal(size=(blobs, 2)) * 4
    order = np.argsort(y, kind="stable")
    following = np.empty((n, 10), np.int64)
    for step in range(10):
        following[order, step] = np.roll(order, -step - 1)
    sizes = np.bincount(y, minlength=blobs)
    rank = np.argsort(np.argsort(-sizes, kind="stable"))
    epochs = [
        {"epoch": e, "loss": 9 + 3 / e, "mi_bound": 1 - 3 / e, "gradient_norm": 1.0, "seconds": e}
        for e in range(1, 41)
    ]
    probe = {
        "accuracy": 0.812,
        "micro_f1": 0.812,
        "macro_f1": 0.8,
        "val_accuracy": 0.8,
        "strength": 0.01,
        "split": "given",
        "nodes": [n // 10, n // 10, n // 2],
    }
    codes = random.integers(0, 4, n)
    split = [codes == code for code in (1, 2, 3)]
    return Contents(
        name=name,
        config=RunConfig({"encoder": "mean", "layers": 2, "dim": 512}, seed=0),
        result={
            "graph": {"name": name, "source": name, "nodes": n, "edges": 4 * n, "features": 50},
            "probe": probe if labelled else None,
            "probe_skipped": None if labelled else "the graph has no labels",
            "train_seconds": 12.5,
            "device": "cpu",
            "versions": {"graphcl": "0"},
        },
        metrics=epochs,
        nodes=Nodes(
            "node",
            n,
            y=y if labelled else None,
            node_ids=ids,
            degree=random.zipf(2.1, n).clip(max=5000),
            **(dict(zip(MASKS, split, strict=True)) if labelled else {}),
        ),
        points=MapPoints(
            np.arange(n),
            centres[y] + random.normal(size=(n, 2)) * random.gamma(2, 0.4, (n, 1)),
            following,
            np.sort(random.uniform(0.6, 1, (n, 10)).astype(np.float32))[:, ::-1],
            "umap",
        ),
        effective_rank=12.5,
        confusion=Confusion(
            np.arange(blobs), random.integers(0, 9, (blobs, blobs)) + 60 * np.eye(blobs, dtype=int)
        )
        if labelled
        else None,
        components=3,
        homophily=0.8 if labelled else None,
        notes=[] if labelled else ["The graph could not be read again: it is gone"],
        assigned=rank[y],
    )


@pytest.fixture(scope="session")
def contents():
    return made_up()


def unpack(packed):
    """The array that `pack` was given; `data.js` does the same in the page."""
    kind, width = packed["type"][0], int(packed["type"][1:])
    raw = zlib.decompress(base64.b64decode(packed["data"]))
    planes = np.frombuffer(raw, np.uint8).reshape(width, -1).T
    return np.ascontiguousarray(planes).view(f"<{kind}{width}").ravel()
