r"""What GRACE, BGRL and CCA-SSG share: graph convolutions, random views, one loop of steps."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import prelu, relu

from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import Features, linear
from graphcl.kernels.recording import CudaGraphStep
from graphcl.research.systems.fitting import Symmetric, require_finite
from graphcl.research.systems.protocol import OnEpoch
from graphcl.seeding import derive
from graphcl.views import drop_edges


def mask_columns(x: Features, rate: float, generator: torch.Generator) -> Features:
    """Returns a copy in which each column is zero for all nodes with probability `rate`.

    The other columns are not rescaled.
    """
    if rate == 0:
        return x
    columns, values = x.shape[1], x if isinstance(x, Tensor) else x.values
    keep = torch.rand(columns, generator=generator, device=values.device) >= rate
    if isinstance(x, Tensor):
        return x * keep
    return x.with_values(x.values * keep[x.indices])


def draw_view(
    x: Features,
    adjacency: Adjacency,
    *,
    edge_drop: float,
    feature_drop: float,
    generator: torch.Generator,
) -> tuple[Features, Symmetric]:
    """Returns a view: columns of features masked, edges dropped, degrees those that are left."""
    kept = drop_edges(adjacency, edge_drop, generator)
    return mask_columns(x, feature_drop, generator), Symmetric.normalised(kept)


class Convolutions(nn.Module):
    r"""Graph convolutions, :math:`H' = \sigma(\mathrm{norm}(\tilde A H W + b))` one after another.

    W is drawn by Glorot's rule, b starts at 0. PReLU's slope starts at 1/4.

    Args:
        widths: of the input, then of each layer.
        draw: draws the weights.
        activation: ``relu``, or ``prelu``, with a slope of its own in each layer.
        last: whether the last layer has an activation.
        normalise: whether batch normalisation comes before the activation. Its momentum is 0.99, so
            that `eval` uses the statistics of the last view.
    """

    def __init__(
        self,
        widths: Sequence[int],
        *,
        draw: torch.Generator,
        activation: str = "relu",
        last: bool = True,
        normalise: bool = False,
    ) -> None:
        super().__init__()
        shapes = list(pairwise(widths))
        self.weights = nn.ParameterList(
            nn.init.xavier_uniform_(torch.empty(shape), generator=draw) for shape in shapes
        )
        self.biases = nn.ParameterList(torch.zeros(width) for _, width in shapes)
        self.norms = nn.ModuleList(
            nn.BatchNorm1d(width, momentum=0.99) for _, width in shapes if normalise
        )
        slopes = len(shapes) - (not last) if activation == "prelu" else 0
        self.slopes = nn.ParameterList(torch.tensor([0.25]) for _ in range(slopes))
        self.activated = len(shapes) - (not last)

    def forward(self, x: Features, pool: Symmetric) -> Tensor:
        """Returns the embeddings, ``[num_nodes, widths[-1]]``."""
        h: Features = x
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            out: Tensor = pool @ linear(h, weight) + bias
            if self.norms:
                out = self.norms[layer](out)
            if layer < self.activated:
                out = prelu(out, self.slopes[layer]) if self.slopes else relu(out)
            h = out
        return out


def dense_layer(
    inputs: int, outputs: int, *, draw: torch.Generator, bias: bool = True
) -> nn.Linear:
    """Returns a linear layer with PyTorch's usual weights, uniform in ±1/√inputs, from `draw`."""
    # On the device `meta` nothing is drawn from the global stream.
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-(inputs**-0.5), inputs**-0.5, generator=draw)
    return layer


def repeat_step(
    step: Callable[[torch.Generator], Tensor],
    *,
    epochs: int,
    seed: int,
    owner: str,
    device: torch.device,
    before: Callable[[int], None] = lambda _: None,
    on_epoch: OnEpoch,
) -> None:
    """Calls `step` once per epoch; a GPU records it after the first few and replays the recording.

    A recorded step takes a tenth of the time on a small graph. It must do the same work in every
    call, draw only from the generator it is given, and never wait for the device.

    Args:
        step: does one training step with the draws of a generator and returns the loss.
        epochs: how often.
        seed: with the epoch's number, it decides the draws of a step.
        owner: the system's name in errors.
        device: where the step runs.
        before: called with the number of the epoch, from 0; may set learning rates.
        on_epoch: called with the epochs done and their number.

    Raises:
        TrainingError: the loss is no longer finite.
    """
    draws = torch.Generator(device)
    recorded = CudaGraphStep(lambda _: step(draws), draws) if device.type == "cuda" else None
    loss = torch.zeros(())
    try:
        for epoch in range(epochs):
            draws.manual_seed(derive(seed, owner, "views", epoch))
            before(epoch)
            loss = recorded(None) if recorded else step(draws)
            on_epoch(epoch + 1, epochs)
    finally:
        if recorded:
            recorded.close()
    require_finite(loss, owner)
