"""`graphcl embed` of stores in parts, plain and typed: each process writes its own shards."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from graphcl.cli._shared.options import print_result
from graphcl.devices import available_memory_bytes
from graphcl.distributed import Share, any_of, beside, group
from graphcl.encoders import LayeredEncoder
from graphcl.errors import DatasetError, GraphError, RunError, require
from graphcl.estimator.fitted import Fitted
from graphcl.graphs.relation import NODE
from graphcl.partitioned.boundary import open_own_part
from graphcl.partitioned.features import PreparedPart, prepare_part_like
from graphcl.partitioned.inference import embed_part, table_bytes
from graphcl.partitioned.shards import suffix_of, whole_shards, write_shard, write_typed_shards
from graphcl.partitioned.wire import Wire
from graphcl.runs import files as runs
from graphcl.runs.embeddings import write_embeddings
from graphcl.runs.typed import run_types, type_folder
from graphcl.store.header import is_parts, read_store
from graphcl.store.reader import PartNodes
from graphcl.tabular.options import counted
from graphcl.training.progress import RowProgress

CPU = torch.device("cpu")


def trained_parts(run: Path) -> str | None:
    """Returns the store in parts that a run was trained on; None if it was something else.

    Raises:
        RunError: there is one of that name, and it is of another build.
    """
    origin = runs.read_config(run, baselines=True).origin
    if not (origin.graph and is_parts(Path(origin.graph))):
        return None
    if read_store(Path(origin.graph)).build != origin.build:
        raise RunError(f"{run}: {origin.graph} is not the graph that the run was trained on")
    return origin.graph


def check_run_of_parts(run: Path, graph: Path, node_type: str | None) -> None:
    """Refuses a run that cannot embed these parts, before any process is started.

    Raises:
        DatasetError: one of them is typed, and the other is not.
        RunError: the run is damaged, or has no such type.
    """
    typed, types = not read_store(graph).is_plain, run_types(run)
    if typed != bool(types):
        kinds = ("typed", "plain") if typed else ("plain", "typed")
        raise DatasetError(
            f"{graph}: is a {kinds[0]} graph in parts; the model was trained on a {kinds[1]} one"
        )
    if node_type is not None:
        require(typed, "embed", "--type", "left out for a plain graph", node_type)
        type_folder(run, node_type)  # or there is no such type


def embed_parts(run: Path, graph: Path, out: Path, *, node_type: str | None, as_json: bool) -> None:
    """Embeds a store in parts; each process opens its part and writes its shards."""
    model, suffix = runs.weights_digest(run), suffix_of(out)
    with group(CPU) as share, whole_shards(out, share) as folder:
        about = _embed(run, graph, folder, share, node_type, suffix, model)
    if share.first:
        shards = counted(about["shards"], "shard")
        text = f"{out}: {counted(about['nodes'], 'embedding')} in {shards}"
        if "types" in about:
            each = ", ".join(f"{count:,} {name}" for name, count in about["types"].items())
            text += f" of each type ({each})"
        print_result({"out": str(out), "graph": str(graph), **about}, text, as_json=as_json)


def _embed(
    run: Path,
    graph: Path,
    folder: Path,
    share: Share,
    node_type: str | None,
    suffix: str,
    model: str,
) -> dict[str, Any]:
    fitted, part = Fitted.read(run), open_own_part(graph, share)
    parts, encoder, plain = part.parts, fitted.encoder, fitted.schema is None
    assert isinstance(encoder, LayeredEncoder)
    if plain and parts.num_features != fitted.num_features:
        found = f"has {parts.num_features} features"
        raise GraphError(f"{graph}: {found}; the model was trained on {fitted.num_features}")
    prepared = PreparedPart.plain(part, fitted.scaling)
    if fitted.schema is not None:
        prepared = prepare_part_like(part, fitted.schema, fitted.typed_scaling, Wire(share))
    free = available_memory_bytes(CPU) // beside(CPU)
    # All have to do alike: with files, columns of the tables travel one after the other.
    large = any_of(table_bytes(encoder, prepared) > free // 2, share)
    z = embed_part(
        encoder,
        prepared,
        share=share,
        scratch=folder if large else None,
        slab_bytes=free // 4,
        on_rows=RowProgress() if share.first else lambda *_: None,
    )
    if fitted.alignment is not None:
        z = {name: fitted.alignment.apply(rows) for name, rows in z.items()}
    about: dict[str, Any] = {"dim": encoder.width, "shards": len(parts), "build": parts.build}
    writes = {name: _writer(part.nodes[name], rows) for name, rows in z.items()}
    if node_type is None and not plain:
        write_typed_shards(folder, suffix, parts, share, encoder.width, writes, model=model)
        types = {name: one.num_nodes for name, one in parts.types.items()}
        return about | {"nodes": parts.num_nodes, "types": types}
    only = NODE if node_type is None else node_type
    if only not in parts.types:
        raise GraphError(f"{graph}: has no nodes of the type {node_type!r}")
    own = parts.types[only]
    write_shard(folder, suffix, own, share, encoder.width, writes[only], model=model)
    return about | ({} if plain else {"type": node_type}) | {"nodes": own.num_nodes}


def _writer(part: PartNodes, z: Any) -> Callable[[Path], None]:
    """Returns what writes the embeddings of a part with the ids of its nodes."""
    names = part.fields.get("node_ids")
    first = part.nodes.start if names is None else 0
    return partial(write_embeddings, z=z, node_ids=names, first=first)
