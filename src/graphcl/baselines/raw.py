"""Raw features, used as if they were an embedding."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphcl.baselines.inputs import graphs_of
from graphcl.baselines.protocol import Baseline, Data, OnEpoch, Rows, silent
from graphcl.graphs.tensors import feature_tensor


@dataclass(frozen=True)
class RawFeatures:
    """Returns the features unchanged; nothing is learned and edges are ignored.

    Differs from the paper: its 47.9 / 49.3 / 69.1 come from a logistic regression whose penalty is
    not stated. Our probe chooses the penalty on validation nodes, as for every system, so the same
    features score higher.
    """

    def embed(
        self,
        data: Data,
        *,
        seed: int,  # noqa: ARG002 (nothing here is random)
        device: torch.device,  # noqa: ARG002
        on_epoch: OnEpoch = silent,
    ) -> Rows:
        """Returns the features, dense, ``[num_nodes, num_features]``."""
        cpu = torch.device("cpu")
        tables = [feature_tensor(graph, device=cpu) for graph in graphs_of(data)]
        dense = [x if isinstance(x, Tensor) else x.to_dense() for x in tables]
        on_epoch(1, 1)
        return np.concatenate(dense)


BASELINE = Baseline("raw", "Raw features", RawFeatures, deterministic=True)
