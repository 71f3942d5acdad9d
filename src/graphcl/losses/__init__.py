"""The contrastive loss, and what a loss of one's own must be.

A loss is called as ``loss(h_1, h_2)`` with the embeddings of a batch in both views and returns a
scalar. What else it can do, it says by attributes: ``across(h_1, h_2, num_nodes=, share=)`` trains
in several processes, ``bound(value, num_nodes)`` is logged as `mi_bound`, and ``recordable = True``
lets a GPU record the training step.
"""

from typing import Any, Protocol

from torch import Tensor

from graphcl.losses.nt_xent import NTXent, nt_xent
from graphcl.registry import LOSSES

__all__ = ["LOSSES", "Loss", "NTXent", "nt_xent", "register_loss"]


class Loss(Protocol):
    """What training minimises."""

    def __call__(self, h_1: Tensor, h_2: Tensor, /) -> Tensor:
        """Returns the loss between two views of a batch, a scalar.

        Args:
            h_1: embeddings in the first view, ``[M, dim]``.
            h_2: embeddings of the same nodes in the second view.
        """


def register_loss(name: str, factory: Any) -> None:
    """Makes a loss of one's own known by name, for recipes and saved runs.

    Args:
        name: what recipes call it.
        factory: called with ``temperature=`` and ``precision=`` of the recipe; returns the loss.
    """
    LOSSES.register(name, factory)
