"""How one graph is trained: whole, or by sampled neighbourhoods."""

from typing import Literal, NamedTuple

import torch

from graphcl.devices import available_memory_bytes
from graphcl.errors import ParameterError
from graphcl.graph import Graph

MODES = ("auto", "full", "sampled")
SAMPLED_ENCODERS = ("mean", "residual")
SAMPLED_BATCH_NODES = 512  # where a recipe leaves the batch open
CPU_NODES = 50_000  # above, a CPU spends minutes on every step that encodes the whole graph
SHARE = 0.7  # of the memory there is; the rest is for what the estimate leaves out


class Mode(NamedTuple):
    """The choice, and why."""

    name: Literal["full", "sampled"]
    reason: str


def choose_mode(
    graph: Graph, mode: str, *, encoder: str, dim: int, layers: int, device: torch.device
) -> Mode:
    """Returns the mode that is asked for; for ``auto``, the one that fits size and memory.

    Whole, a step encodes every node twice. Sampled, it encodes a tree around each node of a batch:
    more work per node, and memory that does not grow with the graph.

    Raises:
        ParameterError: sampling is asked for with an encoder that only sees whole graphs.
    """
    if mode == "sampled" and encoder not in SAMPLED_ENCODERS:
        known = " or ".join(SAMPLED_ENCODERS)
        raise ParameterError(f"mode 'sampled' needs the encoder {known}; got {encoder!r}")
    if mode in ("full", "sampled"):
        return Mode(mode, "as asked")  # type: ignore[arg-type]
    if encoder not in SAMPLED_ENCODERS:
        return Mode("full", f"the encoder {encoder!r} only sees whole graphs")
    needed, available = full_graph_bytes(graph, dim, layers), available_memory_bytes(device)
    size = f"about {needed / 1e9:.1f} GB" if needed >= 1e8 else "under 0.1 GB"
    figures = f"{size} of the {available / 1e9:.1f} GB that are free"
    if needed > SHARE * available:
        return Mode("sampled", f"the whole graph would take {figures}")
    if device.type == "cpu" and graph.num_nodes > CPU_NODES:
        return Mode("sampled", f"{graph.num_nodes:,} nodes are many for a CPU to encode per step")
    return Mode("full", f"the whole graph takes {figures}")


def full_graph_bytes(graph: Graph, dim: int, layers: int) -> int:
    """Estimates what a step over the whole graph holds: two views, with what backward needs."""
    stored = graph.x.nnz * 3 if hasattr(graph.x, "nnz") else graph.x.size
    features = 5 * stored  # the table, both copies, both perturbed
    activations = 2 * graph.num_nodes * dim * (3 * layers + 4)
    entries = 12 * len(graph.indices)
    return 4 * (features + activations) + 8 * entries
