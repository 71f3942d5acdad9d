"""Scores of a trained system as a part of its row, here or in another process."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import scipy.sparse
import torch

from graphcl.baselines.protocol import Data
from graphcl.evaluation import linear_probe
from graphcl.evaluation.multilabel import STEPS
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.trials.methods import Trained, score_method
from graphcl.trials.rows import Row
from graphcl.trials.runner import Scoring


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Returns twelve hex digits that name a system's settings in rows."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def method_scoring(
    row: Row, trained: Trained, data: Data, *, device: torch.device, probe_steps: int = STEPS
) -> Scoring:
    """Returns the row of a trained system and how its scores are found.

    With several labels per node the probe is a training of its own: it runs here, on the device.
    """
    if "failed" in trained.row:
        return Scoring((row | {"failed": trained.row["failed"]},))
    if is_multilabel(data):
        scored = score_method(trained, data, probe_steps=probe_steps, device=device)
        return Scoring((row | scored,))
    return Scoring((row,), method_row, {"trained": trained, "data": labels_only(data)})


def method_row(trained: Trained, data: Data) -> list[Row]:
    """Returns a system's scores as a part of its row."""
    return [score_method(trained, data, device="cpu")]


def probe_scoring(
    row: Row, z: Any, data: Data, *, device: torch.device, probe_steps: int = STEPS
) -> Scoring:
    """Returns a row and how the probe's scores of embeddings `z` are found."""
    if is_multilabel(data):
        found = asdict(linear_probe(z, data, steps=probe_steps, device=str(device)))
        return Scoring((row | found,))
    return Scoring((row,), probe_row, {"z": z, "graph": labels_only(data)})


def probe_row(z: Any, graph: Data) -> list[Row]:
    """Returns the probe's result as a part of a row."""
    return [asdict(linear_probe(z, graph, device="cpu"))]


def is_multilabel(data: Data) -> bool:
    """Whether a node has several labels."""
    return data.y is not None and data.y.ndim == 2


def labels_only(data: Data) -> Data:
    """Returns the graph without edges and features: what the probe reads, small enough to send."""
    if isinstance(data, GraphCollection):
        return data
    return Graph(
        indptr=np.zeros(data.num_nodes + 1, dtype=np.int64),
        indices=np.zeros(0, dtype=np.int64),
        x=scipy.sparse.csr_array((data.num_nodes, 0), dtype=np.float32),
        y=data.y,
        train_mask=data.train_mask,
        val_mask=data.val_mask,
        test_mask=data.test_mask,
        name=data.name,
    )
