r"""A fitted encoder over plain tensors: what another program needs to embed a graph.

Of a plain graph, ``(x, edge_index, edge_weight) -> z``: features ``[nodes, P]`` as the graph has
them, both directions of every edge ``[2, entries]`` without self-loops, and a weight for each, 1
where edges have none.

Of a graph with types there are such inputs for each type and relation, ``x_author``,
``edge_index_writes``, ``edge_weight_writes`` and ``edge_features_writes`` where edges have vectors,
and ``z_author`` for each type; an ``edge_index`` has sources above targets. Of a type without
features, ``x`` is any table with a row per node: its features are computed from its neighbours.

The scaling of features, what fills missing ones, and the sizes of side-by-side parts are inside.
Numbers of nodes and of entries are free.
"""

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graphcl.encoders import layered
from graphcl.errors import ParameterError, RunError, demand, import_extra, option
from graphcl.estimator.fitted import Fitted
from graphcl.files.atomic import whole_file
from graphcl.graphs.filling import filling_order
from graphcl.graphs.relation import Key
from graphcl.graphs.scaling import ColumnScaling, TableScaling
from graphcl.graphs.schema import Schema

KINDS = {"onnx": ".onnx", "torch": ".pt2"}


class Edges(NamedTuple):
    """The edges of a relation as plain tensors; a layer pools along them as along an `Adjacency`.

    Attributes:
        ends: senders above receivers.
        weight: of each edge.
        sizes: the numbers of nodes at both ends.
        within: whether both ends are of one type: a node is then in its own mean.
        features: vectors of the edges, if there are any.
    """

    ends: Tensor
    weight: Tensor
    sizes: tuple[int, int]
    within: bool
    features: Tensor | None = None

    def toward(self, backwards: bool) -> "Edges":
        """Returns the edges in one direction."""
        return self._replace(ends=self.ends.flip(0), sizes=self.sizes[::-1]) if backwards else self

    def sums(self, values: Tensor) -> Tensor:
        """Returns the sum of the edges' values at each receiver, ``[receivers, width]``."""
        return _sums(values, self.ends[1], self.sizes[1])

    def _self_weight(self) -> tuple[Tensor, Tensor]:
        """Returns what a node weighs, as its mean edge or 1 if it has none, and all together."""
        weight = self.weight[:, None]
        total, count = self.sums(weight), self.sums(torch.ones_like(weight))
        if not self.within:
            return torch.zeros_like(total), _or_one(total)
        own = torch.where(count > 0, total / count.clamp(min=1), torch.ones_like(total))
        return own, total + own

    def pool(self, h: Tensor) -> Tensor:
        """Returns each receiver's mean over its senders and, within a type, itself."""
        own, total = self._self_weight()
        around = self.sums(h[self.ends[0]] * self.weight[:, None])
        return (around + h * own if self.within else around) / total

    def edge_mean(self, _: Any = None) -> Tensor:
        """Returns the same mean of the edges' vectors; that of the node itself is zero."""
        assert self.features is not None
        return self.sums(self.features * self.weight[:, None]) / self._self_weight()[1]


class GraphProgram(nn.Module):
    """A fitted encoder with all that its features go through, in operations every runtime knows.

    Args:
        fitted: of a training; its encoder states its layers.

    Raises:
        ParameterError: the encoder does not state its layers.
    """

    def __init__(self, fitted: Fitted) -> None:
        super().__init__()
        self.encoder = layered(fitted.encoder, "export").cpu().eval()
        self.schema, scaling = fitted.schema, fitted.scaling
        self.scales = nn.ModuleList(
            Scale(scaling.nodes.get(one.name, "none")) for one in self.schema.types
        )
        self.edge_scales = nn.ModuleList(
            Scale(scaling.edges.get(one.key, "none")) for one in self.schema.relations
        )
        self.inputs, self.outputs = _names(self.schema, typed=not self.schema.is_plain)
        alignment = fitted.alignment
        self._turned = alignment is not None
        for name, part in ({} if alignment is None else alignment.tensors()).items():
            self.register_buffer(f"alignment_{name}", part)

    def forward(self, *given: Tensor) -> Any:
        """Returns the embeddings of the only type, ``[nodes, width]``, or of each in order."""
        tensors = dict(zip(self.inputs, given, strict=True))
        tables = {
            key: tensors[name] for name, (key, _) in self.inputs.items() if key in self._types
        }
        edges: dict[Key, Any] = {}
        for relation, scale in zip(self.schema.relations, self.edge_scales, strict=True):
            key = relation.key
            ends, weight, *vectors = (
                tensors[name] for name, one in self.inputs.items() if one[0] == key
            )
            sizes = tables[key[0]].shape[0], tables[key[2]].shape[0]
            features = scale(vectors[0]) if vectors else None
            edges[key] = Edges(ends, weight, sizes, key[0] == key[2], features)
        found = list(self.encoder.embedding(self._filled(tables, edges), edges).values())
        if self._turned:
            turn: Any = self
            found = [z @ turn.alignment_rotation + turn.alignment_shift for z in found]
        return found[0] if len(found) == 1 else tuple(found)

    @property
    def _types(self) -> dict[str, int]:
        return {one.name: number for number, one in enumerate(self.schema.types)}

    def _filled(self, x: Mapping[str, Tensor], edges: Mapping[Key, Edges]) -> dict[str, Tensor]:
        """Returns scaled features for all types, as `graphcl.graphs.filling` gives them."""
        done: dict[str, Tensor] = {}
        for one, scale in zip(self.schema.types, self.scales, strict=True):
            if one.filled == "given":
                done[one.name] = scale(x[one.name])
        for name, how, directions in filling_order(self.schema):
            blocks = []
            for direction in directions:
                along = edges[direction.relation].toward(direction.backwards)
                senders, weight = along.ends[0], along.weight[:, None]
                ones = torch.ones_like(weight)
                if how == "neighbours":
                    sent = along.sums(done[direction.sender][senders] * weight)
                    blocks.append(sent / _or_one(along.sums(weight)))
                else:
                    received = along.sums(ones)
                    sent = torch.log1p(_sums(ones, senders, along.sizes[0]))
                    around = along.sums(sent[senders])
                    blocks += [torch.log1p(received), around / received.clamp(min=1)]
            table = torch.cat(blocks, 1) if blocks else torch.ones_like(x[name][:, :1])
            done[name] = self.scales[self._types[name]](table) if how == "structure" else table
        return {name: done[name] for name in x}


class Scale(nn.Module):
    """How the columns of a table are scaled, as the training left it."""

    def __init__(self, scaling: TableScaling) -> None:
        super().__init__()
        self._kind = scaling.plain or "columns" if isinstance(scaling, ColumnScaling) else scaling
        if isinstance(scaling, ColumnScaling) and self._kind == "columns":
            transform = scaling.transform(torch.device("cpu"))
            for name, part in vars(transform).items():
                self.register_buffer(name, part.float() if name == "words" else part)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the table scaled."""
        if self._kind == "none":
            return x
        if self._kind == "row":
            return x / _or_one(x.abs().sum(1, keepdim=True))
        if self._kind == "unit":
            return x / _length(x)
        parts: Any = self
        words = x / _length(x * parts.words)
        unit = _or_one(parts.unit)
        logarithm = torch.log1p(x.abs() / unit) * x.sign()
        others = torch.where(parts.unit > 0, logarithm, x)
        moved = (torch.where(parts.words > 0, words, others) - parts.shift) * parts.factor
        return torch.maximum(torch.minimum(moved, parts.limit), -parts.limit)


def _length(x: Tensor) -> Tensor:
    """Returns the length of each row, by squares in float64; 1 where that is 0."""
    return _or_one(x.double().square().sum(1, keepdim=True).sqrt().float())


def _names(schema: Schema, *, typed: bool) -> tuple[dict[str, tuple[Any, int]], list[str]]:
    """Returns the inputs by name, each with its type or relation and its width; and the outputs."""
    inputs: dict[str, tuple[Any, int]] = {}
    outputs: list[str] = []

    def unlike(name: str, taken: Any) -> str:
        plain = re.sub(r"\W", "_", name)
        while plain in taken:
            plain += "_"
        return plain

    for one in schema.types:
        width = one.num_features if one.filled == "given" else 1
        inputs[unlike(f"x_{one.name}", inputs) if typed else "x"] = (one.name, width)
        outputs.append(unlike(f"z_{one.name}", outputs) if typed else "z")
    for relation in schema.relations:
        own = [("edge_index", 0), ("edge_weight", 0)]
        own += [("edge_features", relation.num_edge_features)] * (relation.num_edge_features > 0)
        for part, width in own:
            name = unlike(f"{part}_{relation.name}", inputs) if typed else part
            inputs[name] = (relation.key, width)
    return inputs, outputs


def _sums(values: Tensor, rows: Tensor, nodes: int) -> Tensor:
    """Returns the sum of the values of each row, ``[nodes, width]``."""
    room = values.new_zeros((nodes, values.shape[1]))
    return room.scatter_add(0, rows[:, None].expand(-1, values.shape[1]), values)


def _or_one(values: Tensor) -> Tensor:
    return torch.where(values > 0, values, torch.ones_like(values))


def _example(program: GraphProgram) -> tuple[list[Tensor], list[dict[int, Any]]]:
    """Returns inputs of a small graph to trace a program with, and which of their sizes are free.

    Its types have seven nodes or more, no two the same: a tracer would take sizes that are equal
    for one. Every relation has a few edges between the first seven.
    """
    tensors: list[Tensor] = []
    free: list[dict[int, Any]] = []
    generator = torch.Generator().manual_seed(0)
    ring = torch.arange(7)
    ahead = torch.stack([ring, (ring + 1) % 7])
    entries: dict[Key, tuple[int, Any]] = {}
    for number, relation in enumerate(program.schema.relations):
        dim = torch.export.Dim(f"entries{number or ''}", min=1)
        entries[relation.key] = (14 + 3 * number, dim)
    for name, (key, width) in program.inputs.items():
        if key in entries:
            count, dim = entries[key]
            if name.startswith("edge_index"):
                ends = torch.cat([ahead, ahead.flip(0)], dim=1)
                tensors.append(torch.cat([ends, ends[:, : count - 14] % 7], dim=1))
                free.append({1: dim})
                continue
            drawn = torch.rand(count, width, generator=generator) if width else torch.ones(count)
            tensors.append(drawn)
            free.append({0: dim})
        else:
            number = program._types[key]
            tensors.append(torch.rand(7 + number, width, generator=generator))
            free.append({0: torch.export.Dim(f"nodes{number or ''}", min=1)})
    return tensors, free


def exported(fitted: Fitted) -> tuple[torch.export.ExportedProgram, GraphProgram]:
    """Returns the encoder as a program of `torch.export`, and what it was made of.

    Raises:
        ParameterError: the encoder does not state its layers, or has a part that cannot be
            exported.
    """
    module = GraphProgram(fitted)
    tensors, free = _example(module)
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(module, tuple(tensors), dynamic_shapes=(tuple(free),))
    except Exception as error:  # any operation of a user's own may be the one
        why = " ".join(str(error).split())[:200]
        raise ParameterError(f"export: this encoder cannot be exported: {why}") from None
    return program, module


def write_program(path: Path, kind: str, fitted: Fitted) -> list[str]:
    """Writes the encoder as one file, whole or not at all, and returns the names of its inputs.

    Args:
        path: the file.
        kind: ``onnx``, or ``torch`` for a program that `torch.export.load` reads.
        fitted: what a training left.
    """
    program, module = exported(fitted)
    if kind == "torch":
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        content = buffer.getvalue()
    else:
        content = _onnx(program, list(module.inputs), module.outputs)
    with whole_file(path) as staging:
        staging.write_bytes(content)
    return list(module.inputs)


def _onnx(program: torch.export.ExportedProgram, inputs: list[str], outputs: list[str]) -> bytes:
    import_extra("onnx", "onnxscript", feature="an ONNX file", extra="export")
    with torch.no_grad(), _quiet():
        found: Any = torch.onnx.export(
            program, (), input_names=inputs, output_names=outputs, dynamo=True, verbose=False
        )
    model: bytes = found.model_proto.SerializeToString()
    demand(
        len(model) < 1 << 31,
        f"export: the weights exceed 2 GB, the limit of an ONNX file; use {option('to', 'torch')}",
        RunError,
    )
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
