"""The relative error of NT-Xent and of its gradient against float64, in every precision.

usage: python -m benchmarks.gradient_error --out ROWS.jsonl [--nodes 64 1000 20000]
           [--dims 64 513 6144] [--device cuda]
       python -m benchmarks.gradient_error --page

Views are normal rows: the second is the first plus noise of the given size, or independent. Each
row of results is one temperature, pair of views, size and precision. `gradient` is the relative
error in the Frobenius norm. `--page` writes docs/research/precision.md and its picture from the
committed rows. Takes about a minute on an H200; on a CPU only its own float32 is measured.
"""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from benchmarks import rows
from graphcl.losses import nt_xent

TEMPERATURES = (0.03, 0.05, 0.07, 0.1, 0.2, 0.5, 1.0)
VIEWS = {"identical": 0.0, "0.1": 0.1, "0.3": 0.3, "1.0": 1.0, "independent": None}
NODES = (64, 1_000, 20_000)
DIMS = (64, 513, 6_144)
PROMISED = {"bf16": (2e-2, 5e-3), "tf32": (2e-3, 5e-4), "float32": (1e-5, 1e-5)}
SMALLEST = 1e-12  # of a gradient: below, nothing is promised
ROOT = Path(__file__).parents[1]
ROWS = ROOT / "benchmarks/results/gradient_error.jsonl"
PAGE = ROOT / "docs/research/precision.md"
PICTURE = ROOT / "docs/research/images/gradient_error.png"


def promised(precision: str, temperature: float) -> float:
    """Returns the largest relative error that we promise."""
    below, above = PROMISED[precision]
    return above if temperature >= 0.07 else below


def two_views(nodes: int, dim: int, noise: float | None, device: torch.device) -> list[Tensor]:
    """Returns two views of normal rows."""
    generator = torch.Generator().manual_seed(nodes + dim)
    first, other = (torch.randn(nodes, dim, generator=generator).to(device) for _ in range(2))
    return [first, other if noise is None else first + noise * other]


class Exact:
    """The loss and its gradient in float64, with the whole matrix of scores."""

    def __init__(self, h_1: Tensor, h_2: Tensor) -> None:
        h = torch.cat([h_1, h_2]).double()
        self.nodes, self.norms = len(h_1), h.norm(dim=1, keepdim=True)
        self.z = normalize(h, eps=1e-300)
        self.scores = self.z @ self.z.T
        self.positives = (self.z * self.z.roll(self.nodes, 0)).sum(1)
        index = torch.arange(len(h), device=h.device)
        self.scores[index, index] = -torch.inf
        self.scores[index, index.roll(self.nodes)] = -torch.inf

    def at(self, temperature: float) -> tuple[float, Tensor]:
        """Returns the loss, and its gradient with respect to the rows of both views."""
        positives = self.positives / temperature
        gaps = (self.scores / temperature).logsumexp(1) - positives
        terms = -logsigmoid(-gaps)
        weights = (self.scores / temperature).sub_((positives + terms)[:, None]).exp_()
        pulled = weights @ self.z + weights.T @ self.z
        shares = gaps.sigmoid()
        shares = shares + shares.roll(self.nodes)
        pulled -= shares[:, None] * self.z.roll(self.nodes, 0)
        pulled -= (pulled * self.z).sum(1, keepdim=True) * self.z
        gradient = pulled / (self.norms * temperature * self.nodes)
        return float(terms.sum() / self.nodes), gradient


def measure(nodes: int, dim: int, views: str, device: torch.device) -> Iterator[dict[str, Any]]:
    """Yields rows for all temperatures and precisions."""
    pair = two_views(nodes, dim, VIEWS[views], device)
    exact = Exact(*pair)
    h_1, h_2 = (h.requires_grad_() for h in pair)
    precisions = list(PROMISED) if device.type == "cuda" else ["float32"]
    for temperature in TEMPERATURES:
        expected, gradient = exact.at(temperature)
        for precision in precisions:
            loss = nt_xent(h_1, h_2, temperature, precision=precision)
            found = torch.cat(torch.autograd.grad(loss, (h_1, h_2)))
            yield {
                "nodes": nodes,
                "dim": dim,
                "views": views,
                "temperature": temperature,
                "precision": precision,
                "loss": expected,
                "loss_error": abs(loss.item() - expected) / expected,
                "gradient": float((found - gradient).norm() / gradient.norm()),
                # The mean gradient of a row, of a scale at which a unit row would be turned over.
                "scale": float(gradient.norm() * nodes**0.5 * temperature),
                "promised": promised(precision, temperature),
            }


def page(found: list[dict[str, Any]]) -> str:
    """Returns the page: the largest error over all sizes, by temperature, views and precision."""
    lines = [
        "# Precision of the loss",
        "",
        "NT-Xent is exact: every pair counts, and nothing is sampled or approximated. What is",
        "left is rounding. This page shows how much of it reaches the gradient.",
        "",
        "The positives are kept out of the sums over tiles, and added in float32",
        "([why](../../src/graphcl/losses/nt_xent.py)). The figures are relative errors of the",
        "gradient against float64, in the Frobenius norm: the largest over",
        f"M = {_listed(row['nodes'] for row in found)} nodes and",
        f"d = {_listed(row['dim'] for row in found)} numbers per embedding, and over pairs",
        "of views that are identical, differ by noise, or are independent.",
        f"Measured on {found[0]['device']} by `python -m benchmarks.gradient_error`.",
        "",
        "![Error of the gradient by temperature](images/gradient_error.png)",
        "",
        f"| τ | {' | '.join(PROMISED)} |",
        "|---|" + "---|" * len(PROMISED),
    ]
    for temperature in TEMPERATURES:
        cells = [
            f"{max(worst(found, one, temperature, views) for views in VIEWS):.1e}"
            for one in PROMISED
        ]
        lines.append(f"| {temperature:g} | " + " | ".join(cells) + " |")
    cells = [f"{PROMISED[one][1]:.0e} ({PROMISED[one][0]:.0e})" for one in PROMISED]
    lines.append(f"| promised from 0.07 on (below) | {' | '.join(cells)} |")
    cells = [exceeding(found, one) for one in PROMISED]
    lines.append(f"| measured cells above that | {' | '.join(cells)} |")
    losses = [max(r["loss_error"] for r in found if r["precision"] == one) for one in PROMISED]
    lines.append(f"| the loss itself, at most | {' | '.join(f'{one:.1e}' for one in losses)} |")
    lines += ["", f"Promised where the gradient of a unit row is above {SMALLEST:.0e}."]
    return "\n".join(lines) + "\n"


def _listed(numbers: Iterable[int]) -> str:
    *most, last = sorted(set(numbers))
    return ", ".join(f"{one:,}" for one in most) + f" and {last:,}"


def exceeding(found: list[dict[str, Any]], precision: str) -> str:
    """Returns how many cells break the promise, in words."""
    broken = [
        row
        for row in found
        if row["precision"] == precision
        and row["scale"] >= SMALLEST
        and max(row["gradient"], row["loss_error"]) > row["promised"]
    ]
    return f"{len(broken)}" if broken else "None"


def worst(found: list[dict[str, Any]], precision: str, temperature: float, views: str) -> float:
    """Returns the largest error of the gradient over all sizes."""
    return max(
        row["gradient"]
        for row in found
        if (row["precision"], row["temperature"], row["views"]) == (precision, temperature, views)
    )


def _name(views: str) -> str:
    return views if VIEWS[views] in (None, 0.0) else f"noise {views}"


def draw(found: list[dict[str, Any]]) -> None:
    """Draws one panel per precision: error by temperature, a line per pair of views."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    from benchmarks.pictures import COLOURS

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), sharey=True, facecolor="white")
    for axis, precision in zip(axes, PROMISED, strict=True):
        for views, colour in zip(VIEWS, COLOURS, strict=False):
            errors = [worst(found, precision, one, views) for one in TEMPERATURES]
            axis.plot(TEMPERATURES, errors, "o-", color=colour, label=_name(views), markersize=4)
        limits = [promised(precision, one) for one in TEMPERATURES]
        axis.step(TEMPERATURES, limits, "k--", where="post", linewidth=1, label="promised")
        axis.set(xscale="log", yscale="log", xlabel="temperature", title=precision)
        axis.set_xticks([0.03, 0.1, 0.3, 1], ["0.03", "0.1", "0.3", "1"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("relative error of the gradient")
    axes[2].legend(fontsize=8, frameon=False, loc="upper right")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES))
    parser.add_argument("--dims", type=int, nargs="+", default=list(DIMS))
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.page:
        found = rows.read(ROWS)
        PAGE.write_text(page(found), encoding="utf-8")
        draw(found)
        return
    if options.out is None:
        parser.error("--out or --page")
    device = torch.device(options.device)
    about = rows.provenance(device)
    for nodes in options.nodes:
        for dim in options.dims:
            for views in VIEWS:
                for row in measure(nodes, dim, views, device):
                    rows.append(options.out, row | about)
            print(f"M={nodes} d={dim} done", flush=True)


if __name__ == "__main__":
    main()
