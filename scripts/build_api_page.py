"""Makes the API page from the docstrings of the public names, when the site is built.

usage: python scripts/build_api_page.py > api.md
"""

import inspect
import re
from importlib import import_module
from typing import Any

import graphcl

PUBLIC = (
    "GraphCL",
    "Recipe",
    "Run",
    "Graph",
    "GraphCollection",
    "load_dataset",
    "open_graph",
    "read_tables",
    "linear_probe",
)
PUBLIC += ("predict", "cluster", "links", "evaluate_links", "neighbors", "nt_xent")
PUBLIC += ("probe_scorer", "GraphCLError")
# Not public names, but the types that public functions take and return.
OTHERS = (
    ("graphcl.graphs.nodes", "Nodes"),
    ("graphcl.graphs.relation", "Relation"),
    ("graphcl.tabular.options", "TableOptions"),
    ("graphcl.evaluation.probe", "ProbeResult"),
    ("graphcl.evaluation.logistic", "MultilabelResult"),
    ("graphcl.answers.prediction", "Predictions"),
    ("graphcl.evaluation.calibration", "PredictionError"),
    ("graphcl.answers.grouping", "Groups"),
    ("graphcl.answers.linking", "Links"),
    ("graphcl.answers.linking", "LinkEvaluation"),
    ("graphcl.evaluation.links", "LinkScores"),
    ("graphcl.answers.similar", "Neighbours"),
    ("graphcl.training", "EpochMetrics"),
    ("graphcl.estimator.fitting", "Health"),
    ("graphcl.evaluation.failure", "Sign"),
    ("graphcl.estimator.inference", "Live"),
    ("graphcl.updating.run", "Update"),
    ("graphcl.runs.versions", "Version"),
    ("graphcl.reporting.page", "Page"),
    ("graphcl.encoders", "EncoderFactory"),
    ("graphcl.encoders", "LayeredEncoder"),
    ("graphcl.encoders", "Layer"),
    ("graphcl.views", "Perturbation"),
    ("graphcl.losses", "Loss"),
)
INTRODUCTION = """\
# API

`import graphcl` gives the names of the first part; they are kept stable. The second part describes
what they take and return. Every error that is raised on purpose is a `GraphCLError`.
"""
SECTIONS = ("Args", "Attributes", "Returns", "Raises")


def page() -> str:
    """Returns the whole page."""
    assert sorted(PUBLIC) == sorted(graphcl.__all__)
    parts = [INTRODUCTION]
    for name in PUBLIC:
        parts += entry(f"graphcl.{name}", getattr(graphcl, name))
    parts.append("## What they take and return\n")
    for module, name in OTHERS:
        parts += entry(f"{module}.{name}", getattr(import_module(module), name), methods=False)
    return "\n".join(parts)


def entry(path: str, thing: Any, *, methods: bool = True) -> list[str]:
    """Returns the lines for a class or function, including the public methods of a class."""
    lines = [f"{'##' if methods else '###'} `{path}`\n", *signature(path, thing)]
    lines.append(markdown(inspect.getdoc(thing) or ""))
    if not (inspect.isclass(thing) and methods) or issubclass(thing, Exception):
        return lines
    ours = [one for one in thing.__mro__ if one.__module__.startswith("graphcl.")]
    for name, member in {key: value for one in ours for key, value in vars(one).items()}.items():
        bare = getattr(member, "__func__", member)
        documented = inspect.getdoc(bare)
        if name.startswith("_") or not documented:
            continue
        if inspect.isfunction(bare):
            lines += [f"### `{thing.__name__}.{name}`\n", *signature(name, bare)]
            lines.append(markdown(documented))
        elif isinstance(member, property) or hasattr(member, "attrname"):
            lines.append(f"### `{thing.__name__}.{name}`\n\nAttribute. {markdown(documented)}")
    return lines


def signature(name: str, thing: Any) -> list[str]:
    """Returns the signature as a block of code, with one parameter per line if it is long."""
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return []
    found = inspect.signature(thing)
    parameters = [one for one in found.parameters.values() if one.name not in ("self", "cls")]
    # Types and overloads are in the source; here they would hide the names.
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in parameters]
    text = str(inspect.Signature(plain))
    text = re.sub(r"<function <lambda> at 0x\w+>|<function \w+\.<lambda> at 0x\w+>", "…", text)
    text = re.sub(r"<function (\w+) at 0x\w+>", r"\1", text)
    call = f"{name.removeprefix('graphcl.') if name.count('.') == 1 else name.split('.')[-1]}{text}"
    if len(call) > 90:
        inside = call[call.index("(") + 1 : -1].split(", ")
        call = call[: call.index("(") + 1] + "".join(f"\n    {one}," for one in inside) + "\n)"
    return ["```text", call, "```\n"]


def markdown(docstring: str) -> str:
    """Returns a Google-style docstring with RST's mathematics as Markdown."""
    text = re.sub(r"\.\. math::[ \n]*((?:.+\n?)(?:(?: {4}.*)?\n)*)", _display, docstring + "\n")
    text = re.sub(r":math:`([^`]+)`", r"$`\1`$", text)
    text = re.sub(r"(?<!`)``([^`]+)``(?!`)", r"`\1`", text)
    text = re.sub(r"::\n\n((?: {4}.+\n|\n)+)", _code, text)
    lines: list[str] = []
    within = ""
    for line in text.splitlines():
        if line.removesuffix(":") in SECTIONS and line.endswith(":"):
            within = line.removesuffix(":")
            lines += [f"**{within}**", ""]
        elif within and (found := re.match(r" {4}(\*{0,2}\w+): (.*)", line)):
            lines.append(f"- `{found[1]}`: {found[2]}")
        elif within and line.startswith("    "):
            lines.append(f"  {line.strip()}" if within != "Returns" else line.strip())
        else:
            within = within if not line else ""
            lines.append(line)
    text = "\n".join(lines).strip() + "\n"
    return re.sub(r"(?:- `\w+`: as above\.\n){2,}", _alike, text)


def _alike(match: re.Match[str]) -> str:
    names = re.findall(r"`\w+`", match[0])
    return f"- {', '.join(names[:-1])} and {names[-1]}: as above.\n"


def _display(match: re.Match[str]) -> str:
    inside = "\n".join(line.strip() for line in match[1].strip().splitlines())
    aligned = f"\\begin{{aligned}}\n{inside}\n\\end{{aligned}}" if "&=" in inside else inside
    return f"```math\n{aligned}\n```\n\n"


def _code(match: re.Match[str]) -> str:
    return f":\n\n```text\n{inspect.cleandoc(match[1])}\n```\n\n"


if __name__ == "__main__":
    print(page(), end="")
