"""`graphcl export`: a trained model as a file or folder for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from graphcl.cli.answers import OverwriteOption, RunArgument, open_run, say
from graphcl.cli.options import JsonOption, print_result


def export(
    run: RunArgument,
    to: Annotated[str, typer.Option("--to", help="onnx, torch, or card.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file, or the card's folder. (default: model.onnx, .pt2 or card here)"
        ),
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(help="Of the model, for the card: mit, apache-2.0, cc-by-4.0, …."),
    ] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Export a trained model: as ONNX, for torch.export, or a folder with a model card.

    ONNX and torch hold the encoder over plain tensors, with its scaling of features: x [nodes,
    features], edge_index [2, entries] with both directions of every edge and no self-loops, and
    edge_weight [entries], 1 where edges have none. Of a graph with types there are such inputs for
    each type and relation: x_author, edge_index_writes, …, and z_author. Nodes and entries may be
    any number. The card's folder holds model.safetensors, config.json and README.md, and can be
    loaded like a run.

    Examples:

        graphcl export runs/cora --to onnx --out cora.onnx

        graphcl export runs/cora --to torch --out cora.pt2

        graphcl export runs/cora --to card --out cora --licence mit
    """
    asked = open_run(run, ("export",))
    if to != "card":
        say("export")("tracing the encoder")
    target = asked.export(to, out, licence=licence, overwrite=overwrite)
    if to == "card":
        print_result({"out": str(target), "to": to}, f"{target}: a model card", as_json=as_json)
        return
    size = target.stat().st_size
    about = {"out": str(target), "to": to, "bytes": size}
    print_result(about, f"{target}: {size / 1e6:.1f} MB", as_json=as_json)
