import copy
import inspect
import subprocess
import sys
import tomllib
from dataclasses import asdict
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcl.encoders import build_encoder
from graphcl.errors import InvalidInputError, ParameterError, RecipeError
from graphcl.estimator.model import GraphCL
from graphcl.files.text import format_toml
from graphcl.recipes import Recipe, load_recipe, recipe_names
from graphcl.recipes.recipe import recipe_keys
from graphcl.registry import ENCODERS
from tests.forging import refused


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_loads_and_survives_a_round_trip(name, tmp_path):
    recipe = load_recipe(name)
    assert recipe.encoder in ENCODERS
    path = tmp_path / "mine.toml"
    path.write_text(recipe.to_toml())
    assert load_recipe(str(path)) == recipe
    assert load_recipe(path).hash == recipe.hash


def test_the_papers_architectures():
    layers = {name: load_recipe(name).layers for name in ("cora", "citeseer", "pubmed")}
    assert layers == {"cora": 2, "citeseer": 1, "pubmed": 1}
    for name in layers:
        recipe = load_recipe(name)
        assert (recipe.encoder, recipe.dim, recipe.batch_nodes) == ("mean", 512, 0)
        assert recipe.learning_rate == 0.001
        assert recipe.temperature in (0.1, 0.5, 0.8, 1.0)
        assert recipe.epochs in (20, 50, 100, 150, 200)
        assert 0.05 <= recipe.edge_drop <= 0.75
        assert 0.2 <= recipe.feature_drop <= 0.8


def test_the_papers_inductive_encoder():
    recipe = load_recipe("ppi")
    assert (recipe.encoder, recipe.layers, recipe.dim) == ("residual", 3, 512)
    assert (recipe.batch_nodes, recipe.learning_rate) == (0, 0.001)
    assert recipe.temperature in (0.1, 0.5, 0.8, 1.0)
    assert recipe.epochs in (20, 50, 100, 150, 200)
    wide = load_recipe("ppi-wide")
    assert (wide.encoder, wide.layers, wide.batch_nodes) == ("residual", 3, 0)
    assert wide.dim > recipe.dim


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_says_what_it_is(name):
    assert (resources.files("graphcl.recipes") / f"{name}.toml").read_text().startswith("# ")


def test_default_follows_the_papers_advice():
    recipe = load_recipe("default")
    assert 0.1 <= recipe.edge_drop <= 0.2
    assert 0.5 <= recipe.feature_drop <= 0.7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"edge_dropp": 0.1}, "unknown key 'edge_dropp'; did you mean 'edge_drop'?"),
        ({"qqqqq": 0.1}, "unknown key 'qqqqq'; known: encoder, layers"),
        ({"edge_drop": 1}, "edge_drop must be in [0, 1); got 1.0"),
        ({"feature_drop": -0.1}, "feature_drop must be in [0, 1); got -0.1"),
        ({"temperature": 0}, "temperature must be positive; got 0.0"),
        ({"temperature": float("inf")}, "temperature must be positive; got inf"),
        ({"epochs": 0}, "epochs must be at least 1; got 0"),
        ({"epochs": "many"}, "epochs must be a whole number; got 'many'"),
        ({"epochs": 1.5}, "epochs must be a whole number; got 1.5"),
        ({"layers": True}, "layers must be a whole number; got True"),
        ({"batch_nodes": -1}, "batch_nodes must be 0 (all nodes) or more; got -1"),
        ({"learning_rate": 0}, "learning_rate must be positive; got 0.0"),
        ({"weight_decay": -1}, "weight_decay must be 0 or more; got -1.0"),
        (
            {"feature_scaling": "max"},
            "feature_scaling must be 'none', 'row', 'unit' or 'auto'; got 'max'",
        ),
        ({"precision": "half"}, "precision must be 'auto'"),
        ({"encoder": 3}, "encoder must be text; got 3"),
        ({"encoder": "gatt"}, "unknown encoder 'gatt'; known: mean, residual, gcn, sage, gat, gin"),
    ],
)
def test_bad_values(values, message):
    with pytest.raises(InvalidInputError) as caught:
        load_recipe("default").replace(**values)
    assert message in str(caught.value)


def test_recipes_and_encoders_know_the_same_names(generator):
    with pytest.raises(ParameterError) as ours:
        load_recipe("default").replace(encoder="gatt")
    with pytest.raises(ParameterError) as theirs:
        build_encoder("gatt", 3, generator=generator)
    assert str(ours.value) == str(theirs.value)


def test_recipes_are_read_without_torch():
    code = (
        "import sys, graphcl.recipes as r; r.load_recipe('cora'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_text_is_read_as_the_keys_type():
    recipe = load_recipe("default").with_texts(epochs="7", edge_drop="0.25", encoder="gat")
    assert (recipe.epochs, recipe.edge_drop, recipe.encoder) == (7, 0.25, "gat")
    with pytest.raises(ParameterError, match="epochs must be a whole number; got 'seven'"):
        recipe.with_texts(epochs="seven")


KINDS = {key: kind for key, kind in Recipe.__annotations__.items() if kind is not str}


@pytest.mark.parametrize("key", KINDS)
def test_in_python_a_text_is_no_number_and_a_truth_value_neither(key, tmp_path):
    base = load_recipe("default")
    value = getattr(base, key)
    message = rf"recipe: {key} must be .*; got '{value}'"
    for attempt in (
        lambda: base.replace(**{key: str(value)}),
        lambda: Recipe(**vars(base) | {key: str(value)}),
        lambda: Recipe(**{key: str(value)}),
    ):
        with pytest.raises(ParameterError, match=message):
            attempt()
    path = tmp_path / "texts.toml"
    path.write_text(format_toml(vars(base) | {key: str(value)}))
    with pytest.raises(ParameterError, match=message):
        load_recipe(path)
    wrong = 1 if KINDS[key] is bool else True
    with pytest.raises(ParameterError, match=rf"recipe: {key} must be .*; got {wrong}"):
        Recipe(**{key: wrong})
    numpy = {int: np.int64, float: np.float64, bool: np.bool_}[KINDS[key]]
    found = getattr(Recipe(**{key: numpy(value)}), key)
    assert type(found) is KINDS[key]
    assert found == value


def test_the_page_says_where_the_recipes_leave_the_papers_advice():
    page = Path("docs/research/how-it-works.md").read_text()
    (row,) = [one for one in page.splitlines() if "Pubmed, views" in one]
    recipes = [load_recipe(name) for name in ("cora", "citeseer", "pubmed", "cora-best")]
    recipes.append(load_recipe("citeseer-best"))
    for key, word in (("edge_drop", "edges"), ("feature_drop", "features")):
        rates = [round(100 * getattr(one, key)) for one in recipes]
        assert f"{min(rates)} to {max(rates)} % of {word}" in row
    best = load_recipe("pubmed-best")
    assert f"{best.edge_drop:.0%} and {best.feature_drop:.0%}".replace("% and", " and") in (
        row.replace(" %", "%")
    )
    scaled = {
        name
        for name in ("cora", "citeseer", "pubmed")
        if load_recipe(name).feature_scaling == "row"
    }
    assert scaled == {"cora", "pubmed"}
    assert "| the recipes of Cora and Pubmed, columns | not stated |" in page


def test_recipe_files_that_cannot_be_used(tmp_path):
    with pytest.raises(RecipeError, match=r"unknown recipe 'corra'; known: .*did you mean 'cora'"):
        load_recipe("corra")
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(str(tmp_path / "absent.toml"))
    path = tmp_path / "bad.toml"
    path.write_text("epochs = ")
    with pytest.raises(RecipeError, match="not TOML"):
        load_recipe(path)
    path.write_text("epochs = 3")
    with pytest.raises(RecipeError, match="the key 'encoder' is missing"):
        load_recipe(path)
    path.write_text(load_recipe("cora").to_toml().replace("512", '"wide"'))
    with pytest.raises(ParameterError, match="dim must be a whole number; got 'wide'"):
        load_recipe(path)


def test_a_run_configuration_is_a_recipe(tmp_path):
    recipe = load_recipe("cora")
    path = tmp_path / "config.toml"
    path.write_text(f"[recipe]\n{recipe.to_toml()}\n[run]\nseed = 1\n")
    assert load_recipe(path) == recipe


def test_every_key_reaches_the_estimator_and_is_explained_once():
    keywords = [name for name in inspect.signature(GraphCL).parameters if name in recipe_keys()]
    assert 10 <= len(keywords) <= 14
    recipe = load_recipe("cora")
    own = {key: getattr(recipe, key) for key in keywords}
    assert GraphCL(Recipe(**asdict(recipe))).complete_recipe() == recipe
    assert GraphCL(recipe, **own).complete_recipe() == recipe
    assert GraphCL(Recipe(fan_out=5), dim=8).complete_recipe() == Recipe(fan_out=5, dim=8)
    assert all(f"\n        {key}: " in Recipe.__doc__ for key in recipe_keys())
    assert all(f"\n        {key}: " in GraphCL.__doc__ for key in keywords)


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        (Recipe(), "Recipe()"),
        (Recipe(temperature=0.8, epochs=20), "Recipe(temperature=0.8, epochs=20)"),
        (Recipe(epochs=20, steps=200), "Recipe(epochs=20, steps=200)"),
        (Recipe(encoder="gcn"), "Recipe(encoder='gcn')"),
        (Recipe(own_features=0.2), "Recipe(own_features=0.2)"),
        (Recipe("cora").replace(fan_out=5), "Recipe('cora', fan_out=5)"),
        (Recipe("ppi", overrides="cites.fan_out=3"), "Recipe('ppi', overrides='cites.fan_out=3')"),
    ],
)
def test_a_recipe_says_how_it_differs_and_survives_being_pasted(recipe, text):
    assert repr(recipe) == text
    assert eval(text) == recipe == Recipe(recipe) == copy.deepcopy(recipe)  # noqa: S307


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
        st.one_of(
            st.text(), st.integers(-(2**62), 2**62), st.booleans(), st.floats(allow_nan=False)
        ),
    )
)
def test_toml_round_trip(values):
    assert tomllib.loads(format_toml(values)) == values


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a = " + "[" * 50_000, "not TOML"),
        ("dim = " + "9" * 9_999, "not TOML"),
        ("#" * (2**20 + 1), "at most 1048576 are read"),
        ("recipe = 7", "[recipe] must be a table"),
        ("encoder = 1", "is missing"),
    ],
)
def test_recipes(content, message, tmp_path, capsys, bounded):
    (tmp_path / "r.toml").write_text(content)
    refused(["train", "cora", "--recipe", "r.toml", "--out", "run"], capsys, message)
