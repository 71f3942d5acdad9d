"""What commands share: options, how a graph is named, how results leave."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from graphcl.collection import GraphCollection
from graphcl.datasets import CATALOGUE, load_dataset
from graphcl.errors import DatasetError, RecipeError, suggestion
from graphcl.graph import Graph
from graphcl.io.graph_file import read_arrays

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
SetOption = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a recipe key; repeatable.")
]


def load_graph(name: str) -> Graph | GraphCollection:
    """Returns the graph that `name` means on a command line: a dataset, or an `.npz` file."""
    if name.lower() in CATALOGUE:
        return load_dataset(name)
    path = Path(name)
    if path.suffix == ".npz":
        return Graph.from_edge_index(name=path.stem, **read_arrays(path))
    known = ", ".join(CATALOGUE)
    near = suggestion(name.lower(), CATALOGUE)
    if path.exists():
        raise DatasetError(f"{name}: a graph file must be an .npz; or name a dataset: {known}")
    raise DatasetError(f"unknown dataset {name!r}; known: {known}, or a path to an .npz{near}")


def note(graph: Graph | GraphCollection) -> dict[str, str]:
    """Returns ``{"note": …}`` where something must be said beside every score on `graph`."""
    text = graph.note if isinstance(graph, GraphCollection) else ""
    return {"note": text} if text else {}


def parse_settings(settings: list[str]) -> dict[str, str]:
    """Returns ``{"key": "value"}`` from the texts given to ``--set``."""
    pairs = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise RecipeError(f"--set takes KEY=VALUE; got {setting!r}")
        pairs[key.strip()] = value.strip()
    return pairs


def print_json(value: Mapping[str, Any]) -> None:
    """Prints one JSON object on stdout."""
    print(json.dumps(value, indent=2, allow_nan=False))
