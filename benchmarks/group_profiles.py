"""How often `cluster` lists a difference where there is none, and how often it finds one that is.

usage: python -m benchmarks.group_profiles run --out ROWS.jsonl [--tables 1000] [--power 200]
       python -m benchmarks.group_profiles show [--out benchmarks/results/group_profiles.jsonl]

A table has six columns of one kind, and its nodes are in five groups of random sizes. Without an
effect, the columns are drawn apart from the groups, and ``listed`` is the share of tables for which
`graphcl.answers.profiles.profiles` lists anything at all. With an effect, the first column differs
in the largest group, and ``listed`` is the share of tables for which that column is listed.
``welch_listed`` is the same by Welch's test of means with the same correction, of numbers alone.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.rows import append, provenance, read
from graphcl.answers.profiles import LEAST, LEVEL, profiles
from graphcl.arrays import Array
from graphcl.research.output import markdown_table
from graphcl.research.rows import Row, number, text
from graphcl.tabular.originals import Original
from graphcl.tabular.preparation import CATEGORY, NUMBER

RESULTS = Path(__file__).parent / "results/group_profiles.jsonl"
SIZES = (100, 300, 1000)
GROUPS = 5
COLUMNS = 6
CATEGORIES = np.array([f"value {place}" for place in range(40)], dtype=object)

Draw = Callable[[np.random.Generator, Array], Array]  # `effect`, 0 or 1 of each node, to values


def _categories(random: np.random.Generator, effect: Array) -> Array:
    drawn = CATEGORIES[(40 * random.random(len(effect)) ** 2).astype(int)]  # the first are frequent
    moved = (effect > 0) & (random.random(len(effect)) < 0.25)
    return np.where(moved, CATEGORIES[20], drawn)


KINDS: dict[str, Draw] = {
    "normal": lambda random, effect: random.normal(size=len(effect)) + 0.7 * effect,
    "uniform": lambda random, effect: random.random(len(effect)) + 0.2 * effect,
    "lognormal": lambda random, effect: random.lognormal(1.4 * effect, 2),
    "pareto": lambda random, effect: random.pareto(1, len(effect)) * np.exp(effect),
    "counts": lambda random, effect: random.poisson(random.gamma(0.2, 2.5 + 7.5 * effect)),
    "rare binary": lambda random, effect: random.random(len(effect)) < 0.02 + 0.13 * effect,
    "categories": _categories,
}


def table(kind: str, nodes: int, seed: int, *, effect: bool) -> tuple[Array, list[Original]]:
    """Returns the group of each node, and the columns."""
    random = np.random.default_rng([seed, nodes, list(KINDS).index(kind)])
    groups = random.choice(GROUPS, nodes, p=random.dirichlet(np.ones(GROUPS)))
    largest = (groups == np.bincount(groups).argmax()).astype(float)
    columns = []
    for place in range(COLUMNS):
        moved = largest if effect and place == 0 else np.zeros(nodes)
        values = KINDS[kind](random, moved)
        if kind == "categories":
            columns.append(Original(f"column {place}", CATEGORY, values))
        else:
            columns.append(Original(f"column {place}", NUMBER, values.astype(float)))
    return groups, columns


def listed_by_profiles(groups: Array, columns: list[Original]) -> set[str]:
    """Returns the columns that are listed for any group."""
    found = [one.what for some in profiles(groups, columns) for one in some]
    return {column.name for column in columns for what in found if what.startswith(column.name)}


def listed_by_welch(groups: Array, columns: list[Original]) -> set[str]:
    """Returns the columns whose means differ by Welch's test, and by Cohen's d of at least 0.2."""
    from scipy.stats import false_discovery_control, ttest_ind

    values = np.stack([column.values for column in columns], axis=1)
    tested, rates = [], []
    for group in range(GROUPS):
        inside, outside = values[groups == group], values[groups != group]
        if min(len(inside), len(outside)) < 2:
            continue
        with np.errstate(all="ignore"):
            p = ttest_ind(inside, outside, equal_var=False).pvalue
            squares = (len(inside) - 1) * inside.var(axis=0, ddof=1)
            squares += (len(outside) - 1) * outside.var(axis=0, ddof=1)
            apart = np.abs(inside.mean(axis=0) - outside.mean(axis=0))
            effects = apart / np.sqrt(squares / (len(values) - 2))
        tested.append(np.nan_to_num(effects) >= LEAST)
        rates.append(np.where(np.isfinite(p), p, 1))
    found = (false_discovery_control(np.array(rates), axis=None).reshape(len(rates), -1)) <= LEVEL
    found &= np.array(tested)
    return {column.name for column, some in zip(columns, found.any(axis=0), strict=True) if some}


def measure(kind: str, nodes: int, tables: int, *, effect: bool) -> Row:
    """Returns the row of one kind and size."""
    began = time.perf_counter()
    ours = welch = 0
    for seed in range(tables):
        groups, columns = table(kind, nodes, seed, effect=effect)
        found = listed_by_profiles(groups, columns)
        ours += "column 0" in found if effect else bool(found)
        if kind != "categories":
            found = listed_by_welch(groups, columns)
            welch += "column 0" in found if effect else bool(found)
    row: Row = {"what": "effect" if effect else "no effect", "kind": kind, "nodes": nodes}
    row |= {"tables": tables, "columns": COLUMNS, "groups": GROUPS, "listed": ours / tables}
    if kind != "categories":
        row["welch_listed"] = welch / tables
    return row | {"seconds": time.perf_counter() - began} | provenance(torch.device("cpu"))


def shown(found: list[Row]) -> str:
    """Returns the rows as a table, in % of tables."""
    lines = []
    for row in found:
        shares = [f"{100 * number(row, 'listed'):.1f}"]
        shares.append(f"{100 * number(row, 'welch_listed'):.1f}" if "welch_listed" in row else "–")
        lines.append([text(row, "what"), text(row, "kind"), f"{row['nodes']:,}", *shares])
    return markdown_table(["columns", "kind", "nodes", "listed, %", "Welch's test, %"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--tables", type=int, default=1000, help="Tables without an effect.")
    parser.add_argument("--power", type=int, default=200, help="Tables with an effect.")
    options = parser.parse_args()
    if options.what == "run":
        for effect, tables in ((False, options.tables), (True, options.power)):
            for kind in KINDS:
                for nodes in SIZES:
                    append(options.out, measure(kind, nodes, tables, effect=effect))
    print(shown(read(options.out)))


if __name__ == "__main__":
    main()
