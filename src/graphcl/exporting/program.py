r"""The encoder over plain tensors: what another program needs to embed a graph, and nothing else.

``(x, edge_index, edge_weight) -> z``: features ``[nodes, P]`` as the graph has them, both
directions of every edge ``[2, entries]`` without self-loops, and a weight for each, 1 where edges
have none.
The scaling of features and the sizes of side-by-side parts are inside. Numbers of nodes and of
entries are free.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graphcl.encoders import Layer, LayeredEncoder, stated_layers
from graphcl.errors import MissingExtraError, ParameterError, RunError
from graphcl.estimator.alignment import Alignment
from graphcl.files.atomic import whole_file
from graphcl.graphs.scaling import ColumnScaling, Scaling

INPUTS, OUTPUT = ("x", "edge_index", "edge_weight"), "z"
KINDS = {"onnx": ".onnx", "torch": ".pt2"}


class PlainEncoder(nn.Module):
    """An encoder with its scaling of features, in operations that every runtime knows.

    Args:
        encoder: states its layers.
        scaling: how features are scaled, as the training left it.
        alignment: what turns embeddings, if an update has trained the model on.

    Raises:
        ParameterError: the encoder does not state its layers.
    """

    def __init__(
        self, encoder: nn.Module, scaling: Scaling, alignment: Alignment | None = None
    ) -> None:
        super().__init__()
        stated_layers(encoder, "export")
        assert isinstance(encoder, LayeredEncoder)
        self.encoder = encoder.cpu().eval()
        self._turned = alignment is not None
        for name, part in ({} if alignment is None else alignment.tensors()).items():
            self.register_buffer(f"alignment_{name}", part)
        self._scaling = (
            scaling.plain or "columns" if isinstance(scaling, ColumnScaling) else scaling
        )
        if isinstance(scaling, ColumnScaling) and self._scaling == "columns":
            transform = scaling.transform(torch.device("cpu"))
            for name, part in vars(transform).items():
                self.register_buffer(name, part.float() if name == "words" else part)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        """Returns the embeddings, ``[nodes, width]``."""
        x = self._scaled(x)
        source, target = edge_index[0], edge_index[1]
        nodes = x.shape[0]
        count = _sums(torch.ones_like(edge_weight)[:, None], source, nodes)
        total = _sums(edge_weight[:, None], source, nodes)
        # A node weighs in its own mean as much as its mean neighbour; alone it weighs 1.
        own = torch.where(count > 0, total / count.clamp(min=1), torch.ones_like(total))

        def mean(h: Tensor) -> Tensor:
            around = _sums(h[target] * edge_weight[:, None], source, nodes)
            return (around + h * own) / (total + own)

        h, results = x, []
        for layer in self.encoder.statement():
            h = _on_graph(layer, h, mean)
            results.append(h)
        beside = self.encoder.beside
        z = results[-1] if beside is None else beside.join(x, results)
        own_turn: Any = self
        return z @ own_turn.alignment_rotation + own_turn.alignment_shift if self._turned else z

    def _scaled(self, x: Tensor) -> Tensor:
        if self._scaling == "none":
            return x
        if self._scaling == "row":
            sums = x.abs().sum(1, keepdim=True)
            return x / torch.where(sums > 0, sums, torch.ones_like(sums))
        parts: Any = self
        sums = (x.abs() * parts.words).sum(1, keepdim=True)
        words = x / torch.where(sums > 0, sums, torch.ones_like(sums))
        unit = torch.where(parts.unit > 0, parts.unit, torch.ones_like(parts.unit))
        logarithm = torch.log1p(x.abs() / unit) * x.sign()
        others = torch.where(parts.unit > 0, logarithm, x)
        moved = (torch.where(parts.words > 0, words, others) - parts.shift) * parts.factor
        return torch.maximum(torch.minimum(moved, parts.limit), -parts.limit)


def _sums(values: Tensor, rows: Tensor, nodes: int) -> Tensor:
    """Returns the sum of the values of each row, ``[nodes, width]``."""
    room = values.new_zeros((nodes, values.shape[1]))
    return room.scatter_add(0, rows[:, None].expand(-1, values.shape[1]), values)


def _on_graph(layer: Layer, h: Tensor, mean: Any) -> Tensor:
    """Returns a layer's result; it pools where rows are narrower."""
    inputs, outputs = layer.pooled.shape
    block = mean(h) @ layer.pooled if inputs <= outputs else mean(h @ layer.pooled)
    if layer.own is not None:
        block = block + h @ layer.own
    return layer.finish(block)


def example(num_features: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns inputs of a small graph, a ring of seven nodes, to trace a program with."""
    ring = torch.arange(7)
    ahead = torch.stack([ring, (ring + 1) % 7])
    edges = torch.cat([ahead, ahead.flip(0)], dim=1)
    generator = torch.Generator().manual_seed(0)
    return torch.rand(7, num_features, generator=generator), edges, torch.ones(edges.shape[1])


def exported(
    encoder: nn.Module, scaling: Scaling, num_features: int, alignment: Alignment | None = None
) -> torch.export.ExportedProgram:
    """Returns the encoder as a program of `torch.export`.

    Raises:
        ParameterError: the encoder does not state its layers, or has a part that cannot be
            exported.
    """
    module = PlainEncoder(encoder, scaling, alignment)
    nodes, entries = torch.export.Dim("nodes", min=1), torch.export.Dim("entries", min=1)
    shapes = {"x": {0: nodes}, "edge_index": {1: entries}, "edge_weight": {0: entries}}
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(module, example(num_features), dynamic_shapes=shapes)
    except Exception as error:  # any operation of a user's own may be the one
        why = " ".join(str(error).split())[:200]
        raise ParameterError(f"export: this encoder cannot be exported: {why}") from None


def write_program(
    path: Path,
    kind: str,
    encoder: nn.Module,
    scaling: Scaling,
    num_features: int,
    alignment: Alignment | None = None,
) -> None:
    """Writes the encoder as one file, whole or not at all.

    Args:
        path: the file.
        kind: ``onnx``, or ``torch`` for a program that `torch.export.load` reads.
        encoder: states its layers.
        scaling: how features are scaled.
        num_features: P.
        alignment: what turns embeddings, if an update has trained the model on.
    """
    program = exported(encoder, scaling, num_features, alignment)
    if kind == "torch":
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        content = buffer.getvalue()
    else:
        content = _onnx(program)
    with whole_file(path) as staging:
        staging.write_bytes(content)


def _onnx(program: torch.export.ExportedProgram) -> bytes:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("an ONNX file", "export") from error
    with torch.no_grad(), _quiet():
        found: Any = torch.onnx.export(
            program, (), input_names=list(INPUTS), output_names=[OUTPUT], dynamo=True, verbose=False
        )
    model: bytes = found.model_proto.SerializeToString()
    if len(model) >= 1 << 31:
        raise RunError("export: the weights exceed 2 GB, the limit of an ONNX file; use --to torch")
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps what exporters say of themselves off the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
