"""The finding of each study as sentences; all numbers come from the study's summary."""

from collections.abc import Callable, Sequence

from graphcl.datasets import CATALOGUE
from graphcl.research.rows import Row


def _title(name: str) -> str:
    return CATALOGUE[name].title if name in CATALOGUE else name


def _by_graph(lines: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for line in lines:
        if line["mean"] is not None:
            found.setdefault(line["graph"], []).append(line)
    return found


def _mean(lines: Sequence[Row]) -> float:
    return sum(line["mean"] for line in lines) / len(lines)


def perturbation(lines: Sequence[Row]) -> str:
    """The range over the grid, and the mean within the paper's advice and outside it."""
    sentences = []
    for graph, cells in _by_graph(lines).items():
        worst, best = (pick(cells, key=lambda c: c["mean"]) for pick in (min, max))
        advised = [c for c in cells if c["edge_drop"] <= 0.2 and 0.5 <= c["feature_drop"] <= 0.7]
        rest = [c for c in cells if c not in advised]
        text = (
            f"{_title(graph)}: over {len(cells)} pairs the accuracy lies between "
            f"{worst['mean']:.1f} (edge_drop {worst['edge_drop']:g}, feature_drop "
            f"{worst['feature_drop']:g}) and {best['mean']:.1f} ({best['edge_drop']:g}, "
            f"{best['feature_drop']:g})"
        )
        if advised and rest:
            text += (
                f"; where the paper advises (up to 20 % of edges, 50 to 70 % of features) it is "
                f"{_mean(advised):.1f} on average, elsewhere {_mean(rest):.1f}"
            )
        sentences.append(f"- {text}.")
    return "\n".join(sentences)


def corruption(lines: Sequence[Row]) -> str:
    """Points that each system loses at the level nearest to one half."""
    sentences = []
    for graph, cells in _by_graph(lines).items():
        by = {(c["method"], c["kind"], c["level"]): c["mean"] for c in cells}
        methods = list(dict.fromkeys(c["method"] for c in cells))
        for kind in dict.fromkeys(c["kind"] for c in cells if c["kind"] != "none"):
            levels = sorted({level for _, k, level in by if k == kind})
            level = min(levels, key=lambda one: abs(one - 0.5))
            losses = [
                f"{method} {by[method, 'none', 0.0] - by[method, kind, level]:.1f}"
                for method in methods
                if (method, kind, level) in by and (method, "none", 0.0) in by
            ]
            sentences.append(
                f"- {_title(graph)}, {kind} at {level:g}: points lost: {', '.join(losses)}."
            )
    return "\n".join(sentences)


def _over(name: str, label: str) -> Callable[[Sequence[Row]], str]:
    def sentence(lines: Sequence[Row]) -> str:
        sentences = []
        for graph, cells in _by_graph(lines).items():
            worst, best = (pick(cells, key=lambda c: c["mean"]) for pick in (min, max))
            sentences.append(
                f"- {_title(graph)}: from {worst['mean']:.1f} at {label} {worst[name]:g} to "
                f"{best['mean']:.1f} at {label} {best[name]:g}."
            )
        return "\n".join(sentences)

    return sentence


def bound(lines: Sequence[Row]) -> str:
    """Both bounds at the first and the last epoch."""
    sentences = []
    for graph, cells in _by_graph(lines).items():
        first, last = (pick(cells, key=lambda c: c["epoch"])["epoch"] for pick in (min, max))
        by = {(c["epoch"], c["bound"]): c["mean"] for c in cells}
        sentences += [
            f"- {_title(graph)}: {name} goes from {_nats(by[first, name])} after the first epoch "
            f"to {_nats(by[last, name])} after {last}."
            for name in dict.fromkeys(c["bound"] for c in cells)
        ]
    return "\n".join(sentences)


def _nats(value: float) -> str:
    return f"{value:.2f} nats".replace("-", "−")


def complexity(lines: Sequence[Row]) -> str:
    """The exponents."""
    slopes = {
        (c["device"], c["mode"]): c["exponent"] for c in lines if c.get("exponent") is not None
    }
    named = {"sampled": "an epoch, sampled", "full": "a step on the whole graph"}
    return "\n".join(
        f"- {named.get(mode, mode)}, {device}: time grows as N to the power of {slope:.2f}."
        for (device, mode), slope in slopes.items()
    )


FINDINGS: dict[str, Callable[[Sequence[Row]], str]] = {
    "perturbation": perturbation,
    "corruption": corruption,
    "temperature": _over("temperature", "τ ="),
    "epochs": _over("epochs", "epoch"),
    "batch": _over("batch_nodes", "M ="),
    "bound": bound,
    "complexity": complexity,
}
