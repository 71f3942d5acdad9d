"""A recipe: every number a training needs, in one flat TOML table."""

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, Self

from graphcl.errors import ParameterError, RecipeError, check_keys, suggestion, typed
from graphcl.files.text import format_toml, read_text
from graphcl.registry import ENCODERS, LOSSES, PERTURBATIONS
from graphcl.settings import ENCODER_OPTIONS, WITH_OPTIONS, check_setting


@dataclass(frozen=True, kw_only=True, init=False, repr=False)
class Recipe:
    """A complete configuration of GraphCL; section 4.3 of the paper.

    ``Recipe("cora", fan_out=5)`` is the shipped recipe of that name with one key changed, and
    ``Recipe(fan_out=5)`` is `default` with it. What is printed can be pasted.

    Another encoder than `mean` and `residual` turns off what it does not take (`normalisation`,
    `side_by_side`, `own_features`, `repeat_own`, `smoothed_features`), and other `epochs` are all
    trained, whatever `steps` was; unless these keys are given, too.

    Args:
        base: a shipped recipe's name, a path to a `.toml`, or a recipe.
        changes: keys with other values than the base has.

    Raises:
        RecipeError: there is no such recipe or key, or the file does not parse.
        ParameterError: a value is of the wrong type or breaks its constraint.

    Attributes:
        encoder: the GNN: `mean` or `residual` (the paper's), `gcn`, `sage`, `gat` or `gin`; or one
            of your own, by name or as ``module:Class``.
        layers: L, the number of GNN layers.
        dim: P', the width of the embedding, and of every layer unless they stand side by side.
        normalisation: of hidden layers: `none`, or `layer`, each row to mean 0 and variance 1.
        side_by_side: whether the embedding has the results of all layers, not of the last alone.
        own_features: the share of the embedding's columns that hold the node's own features.
        repeat_own: whether fewer features than that are repeated until they fill these columns;
            otherwise the layers get the columns that are left.
        smoothed_features: the share of the embedding's columns that hold the mean over the node's
            neighbourhood, L times, of the features in their principal directions.
        perturbation: what draws the views: `drop`, the paper's; or one of your own.
        edge_drop: probability that an edge is absent from a view.
        feature_drop: probability that a feature is zero in a view.
        loss: what training minimises: `nt-xent`, the paper's; or one of your own.
        temperature: τ of NT-Xent.
        epochs: how often each node is visited, at most.
        steps: training ends after so many, also within an epoch; 0 sets no bound.
        batch_nodes: M, the nodes per step that the loss is taken over; 0 takes all.
        learning_rate: Adam's.
        weight_decay: Adam's.
        feature_scaling: `none`; `row`: each node's features divided by their absolute sum; `unit`:
            by the root of their sum of squares; or `auto`: by what the columns hold in the training
            rows (`graphcl.graphs.scaling`).
        precision: of the loss's products on a GPU: `auto` (bf16 there), `float32`, `tf32`, `bf16`;
            in mode `sampled` also of the features and the encoder's products, bf16 or not.
        mode: `full` encodes the whole graph at each step, `sampled` a sampled tree around each node
            of a batch; `auto` chooses by the graph's size and the memory there is.
        fan_out: neighbours sampled per hop, in mode `sampled`.
        sample_with_replacement: as GraphSAGE does.
        inductive: train on the training nodes and the edges among them alone.
        contrast: on typed graphs, what NT-Xent is taken over: nodes of `each` type by itself, of
            `all` types together, or of chosen types, by name and separated by commas.
        overrides: on typed graphs, what differs by relation or node type, as in
            ``writes.edge_drop=0.1, cites.fan_out=3, author.feature_drop=0.2``; `none`: nothing.
    """

    encoder: str
    layers: int
    dim: int
    normalisation: str = "none"
    side_by_side: bool = False
    own_features: float = 0.0
    repeat_own: bool = False
    smoothed_features: float = 0.0
    perturbation: str = "drop"
    edge_drop: float
    feature_drop: float
    loss: str = "nt-xent"
    temperature: float
    epochs: int
    steps: int = 0
    batch_nodes: int
    learning_rate: float
    weight_decay: float
    feature_scaling: str
    precision: str
    mode: str
    fan_out: int
    sample_with_replacement: bool
    inductive: bool
    contrast: str = "each"
    overrides: str = "none"

    def __init__(self, base: "str | Path | Recipe" = "default", **changes: Any) -> None:
        check_keys(changes, recipe_keys(), where="recipe", error=RecipeError)
        if "epochs" in changes:
            changes = {"steps": 0, **changes}
        if "encoder" in changes and changes["encoder"] not in WITH_OPTIONS:
            changes = {**ENCODER_OPTIONS, **changes}
        self._fill({**asdict(load_recipe(base)), **changes})

    def _fill(self, values: Mapping[str, Any]) -> None:
        """Sets every key once and checks it; a key that is left out has the class's default."""
        for key, kind in Recipe.__annotations__.items():
            value = values[key] if key in values else getattr(Recipe, key)
            value = typed(value, kind, owner="recipe", key=key)
            object.__setattr__(self, key, value)  # NumPy's numbers become plain ones
        ENCODERS.check(self.encoder)
        PERTURBATIONS.check(self.perturbation)
        LOSSES.check(self.loss)
        for key in recipe_keys():
            check_setting("recipe", key, getattr(self, key))
        parse_overrides(self.overrides)
        asked = [key for key, off in ENCODER_OPTIONS.items() if getattr(self, key) != off]
        if asked and self.encoder not in WITH_OPTIONS:
            known = " and ".join(WITH_OPTIONS)
            raise ParameterError(
                f"recipe: encoder {self.encoder!r} takes no {asked[0]}; only {known} do"
            )

    def __repr__(self) -> str:
        """Returns the nearest shipped recipe and what differs from it."""
        names = ["default", *recipe_names()]  # of equally near ones, the first
        found = {name: self._changes_from(load_recipe(name)) for name in names}
        base = min(found, key=lambda name: len(found[name]))
        given = [] if base == "default" else [repr(base)]
        given += [f"{key}={value!r}" for key, value in found[base].items()]
        return f"Recipe({', '.join(given)})"

    def _changes_from(self, base: "Recipe") -> dict[str, Any]:
        """Returns what to change in another recipe to get this one."""
        own, other, implied = asdict(self), asdict(base), {"steps", *ENCODER_OPTIONS}
        changes = {
            key: value for key, value in own.items() if value != other[key] and key not in implied
        }
        # Other epochs and another encoder change further keys, mostly to what this recipe has.
        found = asdict(base.replace(**changes))
        return {key: own[key] for key in own if key in changes or own[key] != found[key]}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, where: str) -> Self:
        """Builds a recipe from a complete mapping.

        Raises:
            RecipeError: a key is missing or unknown; `where` names the source in the message.
            ParameterError: a value is of the wrong type or breaks its constraint.
        """
        check_keys(values, recipe_keys(), where=where, error=RecipeError)
        needed = [one.name for one in fields(cls) if one.default is MISSING]
        missing = [key for key in needed if key not in values]
        if missing:
            raise RecipeError(f"{where}: the key {missing[0]!r} is missing")
        recipe = cls.__new__(cls)
        recipe._fill(values)
        return recipe

    def replace(self, **changes: Any) -> Self:
        """Returns this recipe with some keys changed, as ``Recipe(recipe, **changes)`` does."""
        return type(self)(self, **changes)

    def with_texts(self, **values: Any) -> Self:
        """Does as `replace`, and reads texts, such as a command line's, as the key's type."""
        check_keys(values, recipe_keys(), where="recipe", error=RecipeError)
        kinds = Recipe.__annotations__
        return self.replace(
            **{
                key: typed(value, kinds[key], owner="recipe", key=key, texts=True)
                for key, value in values.items()
            }
        )

    def to_toml(self) -> str:
        """Returns the recipe as TOML, one line per key."""
        return format_toml(asdict(self))

    def identity(self) -> dict[str, str | int | float | bool]:
        """Returns the values that tell this recipe from others.

        A later key at its default is left out: what was trained before the key came is the same.
        """
        defaults = {one.name: one.default for one in fields(self)}
        return {key: value for key, value in asdict(self).items() if value != defaults[key]}

    @property
    def hash(self) -> str:
        """Twelve hex digits that name this configuration in result rows."""
        return hashlib.sha256(format_toml(self.identity()).encode()).hexdigest()[:12]


def recipe_keys() -> list[str]:
    """Returns every key of a recipe."""
    return [field.name for field in fields(Recipe)]


def recipe_names() -> list[str]:
    """Returns the names of the shipped recipes."""
    files = resources.files("graphcl.recipes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def recipe_for(dataset: str) -> str:
    """Returns the name of the recipe for a dataset: its own, else ``default``."""
    return dataset if dataset in recipe_names() else "default"


def load_recipe(recipe: str | Path | Recipe) -> Recipe:
    """Returns a shipped recipe by name, or one from a TOML file by path.

    Raises:
        RecipeError: no such recipe or file, or it does not parse.
    """
    if isinstance(recipe, Recipe):
        return recipe
    name = str(recipe)
    if name in recipe_names():
        text = (resources.files("graphcl.recipes") / f"{name}.toml").read_text("utf-8")
    elif name.endswith(".toml"):
        try:
            text = read_text(Path(name), RecipeError)
        except OSError as error:
            raise RecipeError(f"recipe {name}: cannot be read ({error})") from None
    else:
        known = ", ".join(recipe_names())
        near = suggestion(name, recipe_names())
        raise RecipeError(f"unknown recipe {name!r}; known: {known}, or a path to a .toml{near}")
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise RecipeError(f"recipe {name}: not TOML ({error})") from None
    # A run's config.toml keeps its recipe in a table: a run can be trained again from it.
    table = values.get("recipe", values)
    if not isinstance(table, dict):
        raise RecipeError(f"recipe {name}: [recipe] must be a table; got {table!r}")
    return Recipe.from_mapping(table, where=f"recipe {name}")


KINDS: dict[str, Any] = {"edge_drop": float, "feature_drop": float, "fan_out": int}


def parse_overrides(text: str) -> dict[str, dict[str, Any]]:
    """Returns for each key its values by name; ``none`` has none.

    Raises:
        ParameterError: a part is not NAME.KEY=VALUE, or the value is out of bounds.
    """
    found: dict[str, dict[str, Any]] = {key: {} for key in KINDS}
    for part in () if text == "none" else (one.strip() for one in text.split(",")):
        left, equals, value = part.rpartition("=")
        name, dot, key = left.strip().rpartition(".")
        if not (equals and dot and name) or key not in KINDS:
            known = ", ".join(KINDS)
            raise ParameterError(
                f"recipe: overrides must be like writes.edge_drop=0.1, with a key of {known}; "
                f"got {part!r}"
            )
        number = typed(
            value.strip(), KINDS[key], owner="recipe: overrides", key=left.strip(), texts=True
        )
        check_setting("recipe: overrides", key, number)
        found[key][name] = number
    return found
