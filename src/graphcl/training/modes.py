"""How one graph is trained: whole, or by sampled neighbourhoods."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import scipy.sparse
import torch
from torch import nn

from graphcl.devices import available_memory_bytes
from graphcl.encoders import LayeredEncoder
from graphcl.errors import ParameterError, TrainingError, demand
from graphcl.graphs.graph import Graph
from graphcl.kernels.adjacency_rows import LEAST_WIDTH, SLAB_ELEMENTS

SAMPLED_BATCH_NODES = 512  # where a recipe leaves the batch open
CPU_NODES = 50_000  # above, a CPU spends minutes on every step that encodes the whole graph
USABLE = 0.7  # of the memory there is; the rest is for what the estimate leaves out


@dataclass(frozen=True)
class Footprint:
    """What decides how an encoder can train, and what that takes.

    Attributes:
        encoder: its name, for messages.
        widths: the width of each layer's result.
        parameters: how many numbers are trained.
        sampled: whether it can train on sampled trees: it states its layers, and its views are
            drawn by the paper's perturbation.
        own: whether the first layer keeps the node itself beside the mean.
    """

    encoder: str
    widths: tuple[int, ...]
    parameters: int
    sampled: bool = True
    own: bool = False

    @classmethod
    def of(cls, encoder: nn.Module, name: str, *, dim: int, layers: int, sampled: bool) -> Self:
        """Reads an encoder's statement; of one without, `dim` and `layers` say its widths."""
        parameters = sum(one.numel() for one in encoder.parameters())
        if not isinstance(encoder, LayeredEncoder):
            return cls(name, (dim,) * layers, parameters, sampled=False)
        levels = encoder.levels()
        widths = tuple(max(layer.outputs for layer in level.values()) for level in levels)
        own = any(layer.own is not None for layer in levels[0].values())
        return cls(name, widths, parameters, sampled=sampled, own=own)

    @property
    def training_bytes(self) -> int:
        """What the weights take: themselves, their gradient and Adam's two means."""
        return 4 * 4 * self.parameters


class Mode(NamedTuple):
    """The choice, and why."""

    name: Literal["full", "sampled"]
    reason: str


def choose_mode(
    graph: Graph,
    mode: str,
    footprint: Footprint,
    *,
    device: torch.device,
    dividing: int = 1,
    beside: int = 1,
) -> Mode:
    """Returns the mode that is asked for; for ``auto``, the one that fits size and memory.

    Whole, a step encodes every node twice. Sampled, it encodes a tree around each node of a batch:
    more work per node, and memory that does not grow with the graph. Of the processes that train,
    so many are `dividing` the whole graph (1: each holds all of it), and so many share this
    device's memory (`beside`).

    Raises:
        ParameterError: sampling is asked for with parts that only see whole graphs.
    """
    whole_only = f"the encoder {footprint.encoder!r} or its views only see whole graphs"
    demand(
        mode != "sampled" or footprint.sampled,
        f"mode 'sampled' is not possible: {whole_only}; use mode=full",
        ParameterError,
    )
    if mode in ("full", "sampled"):
        return Mode(mode, "as asked")  # type: ignore[arg-type]
    if not footprint.sampled:
        return Mode("full", whole_only)
    needed = beside * full_graph_bytes(graph, footprint, dividing)
    available = available_memory_bytes(device)
    size = f"about {needed / 1e9:.1f} GB" if needed >= 1e8 else "under 0.1 GB"
    figures = f"{size} of the {available / 1e9:.1f} GB that are free"
    if needed > USABLE * available:
        return Mode("sampled", f"the whole graph would take {figures}")
    if device.type == "cpu" and graph.num_nodes > CPU_NODES:
        return Mode("sampled", f"{graph.num_nodes:,} nodes are many for a CPU to encode per step")
    return Mode("full", f"the whole graph takes {figures}")


def check_memory(
    graph: Graph,
    mode: Mode,
    footprint: Footprint,
    *,
    batch_nodes: int,
    fan_out: int,
    feature_scaling: str,
    device: torch.device,
    precision: str = "auto",
    dividing: int = 1,
    beside: int = 1,
) -> None:
    """Refuses a training that would not fit, before it takes any memory, and says what would help.

    Raises:
        TrainingError: the estimate is above what is free. It is an estimate; the caller may
            choose not to ask.
    """
    available = available_memory_bytes(device)

    def needed(batch_nodes: int) -> int:
        if mode.name == "full":
            return beside * full_graph_bytes(graph, footprint, dividing)
        table = table_bytes(
            graph, feature_scaling=feature_scaling, precision=precision, device=device
        )
        widest = max(one.num_features for one in graph.nodes.values())
        step = sampled_bytes(widest, footprint, fan_out, batch_nodes=batch_nodes)
        return footprint.training_bytes + table + step

    if needed(batch_nodes) <= available:
        return
    figures = f"about {needed(batch_nodes) / 1e9:.1f} GB; {available / 1e9:.1f} GB are free"
    smaller = batch_nodes // 2
    while smaller > 16 and needed(smaller) > available:
        smaller //= 2
    if footprint.training_bytes > available:
        advice = "the encoder's weights alone do not fit; set a smaller dim"
    elif mode.name == "full":
        sampled = "mode=sampled" if footprint.sampled else "encoder=mean mode=sampled"
        advice = f"set {sampled}, or a smaller dim"
    elif needed(smaller) <= available:
        advice = f"batch_nodes={smaller} would fit; a smaller dim or fan_out helps, too"
    elif _any_sparse(graph):
        advice = "sparse features are made dense here; reduce their number first"
    elif device.type == "cuda":
        advice = "device=cpu reads features from the disk"
    else:
        advice = "save the graph as a store, whose features stay on disk (Graph.save)"
    raise TrainingError(f"mode {mode.name} needs {figures}; {advice}")


def sampled_dtype(device: torch.device, precision: str) -> torch.dtype:
    """Returns the type of the features, and of the encoder's products, in mode ``sampled``."""
    narrow = device.type == "cuda" and precision in ("auto", "bf16")
    return torch.bfloat16 if narrow else torch.float32


def table_bytes(
    graph: Graph, *, feature_scaling: str, device: torch.device, precision: str = "auto"
) -> int:
    """Estimates what sampled training holds of a graph beyond the graph itself."""
    order = 8 * graph.num_nodes
    values = sum(one.num_nodes * one.num_features for one in graph.nodes.values())
    if device.type == "cuda":
        return sampled_dtype(device, precision).itemsize * values + 8 * _entries(graph) + 2 * order
    if _any_sparse(graph) or (graph.store is None and feature_scaling != "none"):
        return 4 * values + order
    return order + 4 * graph.num_nodes


def _any_sparse(graph: Graph) -> bool:
    return any(scipy.sparse.issparse(one.x) for one in graph.nodes.values())


def _entries(graph: Graph) -> int:
    return sum(len(one.indices) for one in graph.relations.values())


def sampled_bytes(
    num_features: int, footprint: Footprint, fan_out: int, *, batch_nodes: int
) -> int:
    """Estimates what a sampled step holds: two views of this batch and of the next.

    Per tree node above the deepest level: its inputs in both batches, its first layer and that
    layer's gradient. The levels above hold a tenth of the rows and more layers: left out.
    """
    sizes: list[int] = [batch_nodes * fan_out**hop for hop in range(len(footprint.widths) + 1)]
    rows = sum(sizes[:-1])
    inputs = 2 * rows * num_features * (2 if footprint.own else 1)
    activations = rows * footprint.widths[0] * 2
    numbers = 2 * 3 * sum(sizes)  # node numbers of 8 bytes, weights of 4; twice
    return 4 * (2 * (inputs + activations) + numbers)


def full_graph_bytes(graph: Graph, footprint: Footprint, processes: int = 1) -> int:
    """Estimates what training on the whole graph holds: two views, with what backward needs.

    If the graph is divided among `processes`, it is what each of them holds.
    """
    tables = [one.x for one in graph.nodes.values() if one.x is not None]
    stored: int = sum(x.nnz * 3 if hasattr(x, "nnz") else x.size for x in tables)
    features = 5 * stored  # the table, both copies, both perturbed
    # Three tables a layer: the product, its activation, a gradient. Four more for the loss.
    activations = 2 * graph.num_nodes * (3 * sum(footprint.widths) + 4 * footprint.widths[-1])
    entries = 12 * _entries(graph)
    divided = 4 * (features + activations) + 8 * entries
    held = 0
    if processes > 1:
        # The loss holds the unit rows of two other processes. Draws for all edges, and a slab of a
        # layer that the transport holds twice, exist for a while.
        rows = 2 * graph.num_nodes
        others = 2 * rows * footprint.widths[-1] // processes
        slab = min(rows * max(footprint.widths), max(SLAB_ELEMENTS, rows * LEAST_WIDTH))
        held = 4 * (others + _entries(graph) + 2 * slab)
    return -(-divided // processes) + held + footprint.training_bytes
