"""A folder that travels: weights, configuration and a model card, as model hubs expect them.

The folder is a run without embeddings, so `GraphCL.load` reads it. It names the graph's size, not
its path.
"""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from graphcl.errors import counted, option, require
from graphcl.estimator.fitted import Fitted
from graphcl.files.atomic import whole_folder
from graphcl.graphs.scaling import ColumnScaling
from graphcl.runs import files as runs
from graphcl.version import package_version

CARD, CONFIG_JSON = "README.md", "config.json"


def write_card(path: Path, run: Path, *, licence: str = "unknown") -> None:
    """Writes the folder; it appears whole or not at all.

    Args:
        path: the folder.
        run: a run of GraphCL, or the folder of a version.
        licence: of the model, as hubs abbreviate it: ``mit``, ``apache-2.0``, ``cc-by-4.0``.
    """
    plain = licence.replace("-", "").replace(".", "")
    named = plain.isascii() and plain.isalnum()
    require(named, "export", option("licence"), "a short name", licence)
    fitted, result = Fitted.read(run), runs.read_result(run)
    encoder: Any = fitted.encoder
    recipe, scaling = asdict(fitted.components.recipe), fitted.scaling.table
    config = {
        "model_type": "graphcl",
        "library_name": "graphcl",
        "graphcl_version": package_version(),
        "architectures": [type(encoder).__name__],
        "num_features": fitted.num_features,
        "hidden_size": getattr(encoder, "width", recipe["dim"]),
        "seed": fitted.seed,
        "recipe": recipe,
    }
    graph: Any = result.get("graph") if isinstance(result.get("graph"), dict) else {}
    inputs = f"types: {', '.join(fitted.schema.widths)}"
    card = _TEMPLATES.get_template("card.md").render(
        licence=licence,
        name=str(graph.get("name") or "a graph"),
        sizes=[f"{graph[key]:,} {key}" for key in ("nodes", "edges", "features") if key in graph],
        scaling=scaling.describe() if isinstance(scaling, ColumnScaling) else "",
        probe=result.get("probe"),
        fitted=fitted,
        recipe=recipe,
        inputs=counted(fitted.num_features, "feature") if fitted.schema.is_plain else inputs,
    )
    with whole_folder(path) as folder:
        fitted.write(folder, runs.Origin())
        (folder / CONFIG_JSON).write_text(json.dumps(config, indent=2) + "\n")
        (folder / CARD).write_text(card, encoding="utf-8")


def _plain(text: str) -> str:
    """Returns a name without what Markdown would read as markup."""
    kept = "".join(" " if letter in "\r\n" else letter for letter in text)
    kept = "".join(letter for letter in kept if letter not in "<>`|*[]\\")
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", kept)  # inside a word it is no markup


_TEMPLATES = Environment(  # of Markdown, in which nothing is escaped but names
    loader=PackageLoader("graphcl.exporting", "assets"),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters |= {"plain": _plain, "counted": counted}
