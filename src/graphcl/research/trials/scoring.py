"""Scores of embeddings and trained systems, for rows."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse
import torch

from graphcl.evaluation import linear_probe
from graphcl.evaluation.multilabel import STEPS
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.research.systems.protocol import Data
from graphcl.research.trials.methods import Trained, score_method
from graphcl.research.trials.rows import Json, Row
from graphcl.research.trials.runner import Scoring


def settings_hash(settings: Mapping[str, Json]) -> str:
    """Returns twelve hexadecimal digits that identify a system's settings in rows."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def method_scoring(
    row: Row, trained: Trained, data: Data, *, device: torch.device, probe_steps: int = STEPS
) -> Scoring:
    """Returns `row`, which has the columns of `trained`, with the function that scores it.

    With several labels per node the probe is trained here, on the device.
    """
    if trained.trial.failed is not None:
        return Scoring((row,))
    if is_multilabel(data):
        scored = score_method(trained, data, probe_steps=probe_steps, device=device)
        return Scoring((row | scored.to_json(),))
    return Scoring((row,), partial(_method_rows, trained, labels_only(data)))


def _method_rows(trained: Trained, data: Data) -> list[Row]:
    return [score_method(trained, data, device="cpu").to_json()]


def probe_scoring(
    row: Row, z: Any, data: Data, *, device: torch.device, probe_steps: int = STEPS
) -> Scoring:
    """Returns `row` with the function that computes the probe's scores of the embeddings `z`."""
    if is_multilabel(data):
        found: Row = asdict(linear_probe(z, data, steps=probe_steps, device=str(device)))
        return Scoring((row | found,))
    return Scoring((row,), partial(_probe_rows, z, labels_only(data)))


def _probe_rows(z: Any, data: Data) -> list[Row]:
    return [asdict(linear_probe(z, data, device="cpu"))]


def is_multilabel(data: Data) -> bool:
    """Whether nodes have several labels."""
    return data.y is not None and data.y.ndim == 2


def labels_only(data: Data) -> Data:
    """Returns the graph without edges and features, which the probe does not need."""
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
        splits=data.splits,
        name=data.name,
    )
