"""Options that commands share, and JSON output; imports no torch, so that `--help` is fast."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from graphcl.errors import RecipeError

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
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


def print_json(value: Mapping[str, Any]) -> None:
    """Prints one JSON object on stdout."""
    print(json.dumps(value, indent=2, allow_nan=False))
