r"""GraphSAGE's four aggregators (Hamilton et al. 2017, section 3.3).

Each is a layer that computes a node's next row from its own row and those of f sampled neighbours.
All but `Gcn` concatenate the node's own row and the neighbourhood's (line 5 of algorithm 1):
:math:`h_v \leftarrow \sigma(W \cdot \mathrm{concat}(h_v, h_{N(v)}))`. W is split into two blocks of
`dim` columns each, as in the authors' code. The caller applies the activation σ.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from graphcl.encoders import glorot


class Gcn(nn.Module):
    r""":math:`W \cdot \mathrm{mean}(\{h_v\} \cup \{h_u, u \in N(v)\})`, equation 2; no concat."""

    def __init__(self, inputs: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, 2 * dim))

    def forward(self, own: Tensor, around: Tensor) -> Tensor:
        """Returns ``[n, 2 dim]`` for rows ``[n, inputs]`` and neighbours ``[n, f, inputs]``."""
        mean: Tensor = (own + around.sum(1)) / (1 + around.shape[1])
        return mean @ self.weight


class Mean(nn.Module):
    r""":math:`[W_1 h_v \| W_2\, \mathrm{mean}_u\, h_u]`."""

    def __init__(self, inputs: int, dim: int) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.empty(inputs, dim))
        self.weight = nn.Parameter(torch.empty(inputs, dim))

    def forward(self, own: Tensor, around: Tensor) -> Tensor:
        """Returns ``[n, 2 dim]`` for rows ``[n, inputs]`` and neighbours ``[n, f, inputs]``."""
        return torch.cat([own @ self.own, around.mean(1) @ self.weight], dim=1)


class Pool(nn.Module):
    r""":math:`[W_1 h_v \| W_2 \max_u \mathrm{ReLU}(W_p h_u + b)]`, equation 3."""

    def __init__(self, inputs: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.pool = nn.Parameter(torch.empty(inputs, hidden))
        self.pool_bias = nn.Parameter(torch.empty(hidden))
        self.own = nn.Parameter(torch.empty(inputs, dim))
        self.weight = nn.Parameter(torch.empty(hidden, dim))

    def forward(self, own: Tensor, around: Tensor) -> Tensor:
        """Returns ``[n, 2 dim]`` for rows ``[n, inputs]`` and neighbours ``[n, f, inputs]``."""
        # ReLU and the bias are monotone, so they can follow the maximum, on f times fewer rows.
        largest = relu((around @ self.pool).amax(1) + self.pool_bias)
        return torch.cat([own @ self.own, largest @ self.weight], dim=1)


class Lstm(nn.Module):
    r""":math:`[W_1 h_v \| W_2\, \mathrm{LSTM}(h_{u_1}, \ldots, h_{u_f})]`, its last state.

    It reads the neighbours in the random order in which they were drawn, as in the paper.
    """

    def __init__(self, inputs: int, dim: int, hidden: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # PyTorch's own draws are replaced by `glorot`
            self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.own = nn.Parameter(torch.empty(inputs, dim))
        self.weight = nn.Parameter(torch.empty(hidden, dim))

    def forward(self, own: Tensor, around: Tensor) -> Tensor:
        """Returns ``[n, 2 dim]`` for rows ``[n, inputs]`` and neighbours ``[n, f, inputs]``."""
        _, (last, _) = self.lstm(around)
        return torch.cat([own @ self.own, last[0] @ self.weight], dim=1)


AGGREGATORS = ("gcn", "mean", "lstm", "pool")


def build_aggregators(
    name: str,
    num_features: int,
    *,
    dim: int,
    layers: int,
    pool_dim: int,
    lstm_dim: int,
    generator: torch.Generator,
) -> nn.ModuleList:
    """Returns new layers with ``2 dim`` outputs each, Glorot weights and zero biases.

    Args:
        name: one of `AGGREGATORS`.
        num_features: P, the width of the input.
        dim: width of each half of a layer's output.
        layers: K.
        pool_dim: width of the rows that `pool` takes the maximum over.
        lstm_dim: width of the state of `lstm`.
        generator: a CPU generator; it alone decides the weights.
    """
    kinds: dict[str, Any] = {
        "gcn": lambda inputs: Gcn(inputs, dim),
        "mean": lambda inputs: Mean(inputs, dim),
        "lstm": lambda inputs: Lstm(inputs, dim, lstm_dim),
        "pool": lambda inputs: Pool(inputs, dim, pool_dim),
    }
    module = nn.ModuleList(kinds[name](num_features if k == 0 else 2 * dim) for k in range(layers))
    glorot(module, generator)
    for parameter_name, parameter in module.named_parameters():
        if parameter.ndim == 1:  # PyTorch's LSTM calls its biases bias_hh_l0 and bias_ih_l0
            assert "bias" in parameter_name
            nn.init.zeros_(parameter)
    return module
