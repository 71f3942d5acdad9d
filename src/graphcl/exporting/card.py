"""A folder that travels: weights, configuration and a model card, as model hubs expect them.

The folder is a run without embeddings, so `GraphCL.load` reads it. It names the graph's size, not
its path.
"""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from graphcl.errors import counted, option, require
from graphcl.estimator.fitted import Fitted
from graphcl.files.atomic import whole_folder
from graphcl.graphs.scaling import ColumnScaling
from graphcl.runs import files as runs
from graphcl.runs.files import read_result
from graphcl.runs.versions import current_run
from graphcl.version import package_version

CARD, CONFIG_JSON = "README.md", "config.json"
SCORES = ("accuracy", "roc_auc", "micro_f1", "macro_f1")


def write_card(path: Path, run: Path, *, licence: str = "unknown") -> None:
    """Writes the folder; it appears whole or not at all.

    Args:
        path: the folder.
        run: a run of GraphCL.
        licence: of the model, as hubs abbreviate it: ``mit``, ``apache-2.0``, ``cc-by-4.0``.
    """
    plain = licence.replace("-", "").replace(".", "")
    named = plain.isascii() and plain.isalnum()
    require(named, "export", option("licence"), "a short name", licence)
    run = current_run(run)
    fitted, result = Fitted.read(run), read_result(run)
    with whole_folder(path) as folder:
        fitted.write(folder, runs.Origin())
        (folder / CONFIG_JSON).write_text(json.dumps(_config(fitted), indent=2) + "\n")
        (folder / CARD).write_text(_card(fitted, result, licence), encoding="utf-8")


def _config(fitted: Fitted) -> dict[str, Any]:
    encoder: Any = fitted.encoder
    return {
        "model_type": "graphcl",
        "library_name": "graphcl",
        "graphcl_version": package_version(),
        "architectures": [type(encoder).__name__],
        "num_features": fitted.num_features,
        "hidden_size": getattr(encoder, "width", fitted.components.recipe.dim),
        "seed": fitted.seed,
        "recipe": asdict(fitted.components.recipe),
    }


def _card(fitted: Fitted, result: dict[str, Any], licence: str) -> str:
    recipe = fitted.components.recipe
    graph = result.get("graph") if isinstance(result.get("graph"), dict) else {}
    assert isinstance(graph, dict)
    name = str(graph.get("name") or "a graph")
    head = [
        "---",
        f"license: {licence}",
        "library_name: graphcl",
        "tags:",
        *(f"- {tag}" for tag in ("graphcl", "graph-neural-network", "node-embeddings")),
        "pipeline_tag: graph-ml",
        "---",
    ]
    sizes = [f"{graph[key]:,} {key}" for key in ("nodes", "edges", "features") if key in graph]
    data = f"It was trained on *{_plain(name)}*" + (f": {', '.join(sizes)}." if sizes else ".")
    scaling = ""
    table = fitted.scaling.table
    if isinstance(table, ColumnScaling):
        scaling = f" Features are scaled by the model itself ({table.describe()})."
    probe = result.get("probe")
    lines = [
        *head,
        "",
        f"# GraphCL: {_plain(name)}",
        "",
        "Node embeddings of an attributed graph, learned without labels by the contrastive method "
        "of Hafidi et al. (2020).",
        "",
        "## Data",
        "",
        f"{data} Labels, if there were any, were not used to train it.{scaling}",
        "",
        "## Scores",
        "",
        *_scores(probe),
        "",
        "## Training",
        "",
        f"Seed {fitted.seed}, {counted(len(fitted.history), 'epoch')}, {fitted.seconds:.1f} s. "
        "The recipe:",
        "",
        "| key | value |",
        "|---|---|",
        *(f"| `{key}` | `{value}` |" for key, value in asdict(recipe).items()),
        "",
        "## Use",
        "",
        "```python",
        "import graphcl",
        "",
        'model = graphcl.GraphCL.load("THIS_FOLDER")',
        f"z = model.transform(graph)  # a graph with the same {_inputs(fitted)}",
        "```",
        "",
        "## Limits",
        "",
        "Embeddings mean something for graphs whose features mean the same as in training. Similar "
        "embeddings say that nodes have similar features and surroundings, and not more.",
        "",
    ]
    return "\n".join(lines)


def _inputs(fitted: Fitted) -> str:
    if fitted.schema.is_plain:
        return counted(fitted.num_features, "feature")
    return f"types: {', '.join(fitted.schema.widths)}"


def _scores(probe: Any) -> list[str]:
    if not isinstance(probe, dict):
        return ["None: the graph had no labels to score the embeddings with."]
    rows = [f"| {key} | {probe[key]:.4f} |" for key in SCORES if isinstance(probe.get(key), float)]
    where = f"test nodes, {probe.get('split', '')} split"
    if probe.get("folds"):
        where = f"labelled nodes, each held out in one of {probe['folds']} folds"
    about = f"Logistic regression on the frozen embeddings, {where}:"
    return [about, "", "| score | value |", "|---|---|", *rows]


def _plain(text: str) -> str:
    """Returns a name without what Markdown would read as markup."""
    kept = "".join(" " if letter in "\r\n" else letter for letter in text)
    kept = "".join(letter for letter in kept if letter not in "<>`|*[]\\")
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", kept)  # inside a word it is no markup
