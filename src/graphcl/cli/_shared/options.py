"""Options that commands share, and JSON output; imports no torch, so that `--help` is fast."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from graphcl.errors import RecipeError

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
RunGraphOption = Annotated[
    str | None,
    typer.Option(
        "--graph",
        help="The graph that the run was trained on, as train takes it. (default: the run's graph)",
    ),
]
SetOption = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a recipe key; repeatable.")
]


def parse_settings(settings: list[str]) -> dict[str, str]:
    """Returns ``{"key": "value"}`` from the texts given to ``--set``."""
    pairs = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise RecipeError(f"--set takes KEY=VALUE; got {setting!r}")
        pairs[key.strip()] = value.strip()
    return pairs


def print_result(value: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Prints `value` as one JSON object on stdout, or else `text`, if there is any."""
    if as_json or text:
        print(json.dumps(value, indent=2, allow_nan=False) if as_json else text)


def print_warnings(signs: Sequence[Mapping[str, str]]) -> None:
    """Prints signs that a training failed, on stderr; stdout is for results."""
    for sign in signs:
        print(f"warning: {sign['message']}\n  try {sign['advice']}", file=sys.stderr, flush=True)


def figures(graph: Any) -> dict[str, int]:
    """Returns the counts by which a graph is described."""
    names = ("nodes", "edges", "features", "classes")
    return {name: getattr(graph, f"num_{name}") for name in names}
