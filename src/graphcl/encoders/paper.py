"""The paper's two encoders: mean pooling, and mean pooling with residual units.

`graphcl.encoders.EncoderFactory` describes their arguments.
"""

from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import elu

from graphcl.encoders.layer import Layer, LayeredEncoder, glorot


class MeanPoolingEncoder(LayeredEncoder):
    r"""The paper's transductive encoders.

    One layer: :math:`f(X, A) = \sigma(\hat A X W^{(0)})`. Two:
    :math:`f(X, A) = \hat A\, \sigma(\hat A X W^{(0)})\, W^{(1)}`, and so on for more, with
    :math:`\hat A = \check D^{-1}(A + I)`, :math:`\sigma` = ELU, Glorot weights and no bias.
    """

    def __init__(
        self, num_features: int, *, dim: int, layers: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        shapes = pairwise([num_features] + [dim] * layers)
        self.weights = nn.ParameterList(torch.empty(shape) for shape in shapes)
        glorot(self, generator)

    def statement(self) -> tuple[Layer, ...]:
        """Returns the layers; the last of several has no activation."""
        last = len(self.weights) - 1
        return tuple(
            Layer(weight, activation=elu if number < last or last == 0 else None)
            for number, weight in enumerate(self.weights)
        )


class ResidualEncoder(LayeredEncoder):
    r"""The paper's inductive encoder: mean pooling with residual units.

    .. math::
        H^{(1)} &= \sigma(\hat A X W_1^{(0)} + X W_2^{(0)}) \\
        H^{(2)} &= \sigma(\hat A H^{(1)} W_1^{(1)} + H^{(1)} W_2^{(1)}) \\
        f(X, A) &= \hat A H^{(2)} W_1^{(2)} + H^{(2)} W_2^{(2)}

    Written here for three layers as in the paper. Any number of layers works; the last one has no
    activation. :math:`\sigma` = ELU, Glorot weights and no bias.
    """

    def __init__(
        self, num_features: int, *, dim: int, layers: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        shapes = list(pairwise([num_features] + [dim] * layers))
        self.pooled_weights = nn.ParameterList(torch.empty(shape) for shape in shapes)  # W_1
        self.own_weights = nn.ParameterList(torch.empty(shape) for shape in shapes)  # W_2
        glorot(self, generator)

    def statement(self) -> tuple[Layer, ...]:
        """Returns the layers; the last has no activation."""
        last = len(self.own_weights) - 1
        pairs = zip(self.pooled_weights, self.own_weights, strict=True)
        return tuple(
            Layer(pooled, own, activation=elu if number < last else None)
            for number, (pooled, own) in enumerate(pairs)
        )
