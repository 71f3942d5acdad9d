"""Which nodes make a batch.

What NT-Xent is taken over is a choice of the batches: nodes of one type in each batch (``each``),
of all types together (``all``), or of chosen types together. The loss itself is the paper's. Nodes
of other types are negatives that are told apart by their type alone.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from graphcl.errors import ParameterError, suggestion
from graphcl.seeding import generator


def steps_of(num_nodes: int, batch_nodes: int) -> int:
    """Returns the number of batches of `batch_nodes`, or fewer, in an epoch; 0 takes all nodes."""
    return 1 if batch_nodes == 0 else -(-num_nodes // batch_nodes)


def contrasted_types(contrast: str, types: Sequence[str]) -> list[str]:
    """Returns the types whose nodes are contrasted.

    Raises:
        ParameterError: a name is unknown.
    """
    if contrast in ("all", "each"):
        return list(types)
    names = [name.strip() for name in contrast.split(",")]
    for name in names:
        if name not in types:
            known = ", ".join(types)
            raise ParameterError(
                f"contrast: must be 'each', 'all' or names of types ({known}); got {name!r}"
                f"{suggestion(name, types)}"
            )
    return list(dict.fromkeys(names))


def batches_in(sizes: Mapping[str, int], contrast: str, batch_nodes: int) -> int:
    """Returns the number of batches in an epoch."""
    chosen = [sizes[name] for name in contrasted_types(contrast, list(sizes))]
    if contrast != "each":
        return steps_of(sum(chosen), batch_nodes)
    return sum(steps_of(size, batch_nodes) for size in chosen)


def node_batches(
    sizes: Mapping[str, int], contrast: str, batch_nodes: int, number: int, seed: int
) -> list[dict[str, Tensor]]:
    """Returns the nodes of each batch of an epoch by type, on the host, in a random order.

    Batches have equal sizes: a last one of few nodes would have few negatives.
    """
    random = generator(seed, "batches", number)
    names = contrasted_types(contrast, list(sizes))
    if contrast == "each":
        found = []
        for name in names:
            order = torch.randperm(sizes[name], generator=random)
            parts = order.tensor_split(steps_of(sizes[name], batch_nodes))
            found += [{name: part} for part in parts]
        if len(names) == 1:
            return found
        mixed = torch.randperm(len(found), generator=random).tolist()
        return [found[place] for place in mixed]
    ends = torch.tensor([sizes[name] for name in names]).cumsum(0)
    order = torch.randperm(int(ends[-1]), generator=random)
    return [
        _by_type(part, names, ends)
        for part in order.tensor_split(steps_of(len(order), batch_nodes))
    ]


def _by_type(nodes: Tensor, names: Sequence[str], ends: Tensor) -> dict[str, Tensor]:
    """Splits numbers over all types into numbers within each; a type without any is left out."""
    kinds = torch.bucketize(nodes, ends, right=True)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    parts = {name: nodes[kinds == k] - starts[k] for k, name in enumerate(names)}
    return {name: part for name, part in parts.items() if len(part)}
