"""What is tried, in which order: a table of recipes that was good on many graphs.

`portfolio.toml` is written by `python -m benchmarks.choosing portfolio` from the rows of a study.
To try something else as well, add a table to it: a name, and keys of a recipe.
"""

import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from graphcl.errors import RecipeError
from graphcl.recipes import Recipe
from graphcl.recipes.recipe import check_keys
from graphcl.seeding import derive

FILE = "portfolio.toml"
# What is drawn beyond the portfolio.
CHOICES: dict[str, tuple[Any, ...]] = {
    "encoder": ("mean", "residual", "gcn"),
    "layers": (1, 2),
    "edge_drop": (0.1, 0.2, 0.3, 0.5),
    "feature_drop": (0.2, 0.3, 0.5, 0.7),
    "temperature": (0.2, 0.5, 0.8, 1.0),
    "feature_scaling": ("none", "row", "auto"),
}
DRAWS = 20  # in a row that give nothing new; then there is nothing left to try


@dataclass(frozen=True)
class Candidate:
    """A recipe to try.

    Attributes:
        name: its name in results.
        values: keys of the recipe; those that it does not name are the base's.
    """

    name: str
    values: Mapping[str, Any]


def load_portfolio() -> tuple[Candidate, ...]:
    """Returns the table, in the order in which it is tried.

    Raises:
        RecipeError: a candidate has a key that no recipe has.
    """
    text = (resources.files("graphcl.research.choosing") / FILE).read_text()
    found = []
    for table in tomllib.loads(text)["trial"]:
        name = table.pop("name")
        check_keys(table, where=f"{FILE}: {name}")
        found.append(Candidate(name, table))
    if not found:
        raise RecipeError(f"{FILE}: holds no candidate")
    return tuple(found)


def candidates(
    base: Recipe,
    count: int,
    *,
    fixed: Collection[str] = (),
    seed: int = 0,
    same: Callable[[Recipe], Recipe] = lambda recipe: recipe,
) -> list[tuple[Candidate, Recipe]]:
    """Returns up to `count` different recipes: the portfolio's first, then drawn ones.

    Args:
        base: has the values of all keys that a candidate does not name.
        count: how many.
        fixed: keys that keep the base's value whatever a candidate says.
        seed: decides what is drawn.
        same: returns a recipe that trains alike. Candidates that come to the same as an earlier one
            are left out; there are fewer if nothing else is left.
    """
    found: list[tuple[Candidate, Recipe]] = []
    seen: set[Recipe] = set()

    def add(candidate: Candidate) -> bool:
        kept = {key: value for key, value in candidate.values.items() if key not in fixed}
        recipe = base.with_values(**kept)
        new = same(recipe) not in seen
        if new and len(found) < count:
            seen.add(same(recipe))
            found.append((Candidate(candidate.name, kept), recipe))
        return new

    for candidate in load_portfolio():
        add(candidate)
    random = np.random.default_rng(derive(seed, "candidates") % 2**63)
    failures = number = 0
    while len(found) < count and failures < DRAWS:
        drawn = {key: kinds[random.integers(len(kinds))] for key, kinds in CHOICES.items()}
        new = add(Candidate(f"drawn-{number + 1}", drawn))
        number, failures = number + new, 0 if new else failures + 1
    return found
