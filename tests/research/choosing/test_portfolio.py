import pytest

from graphcl.errors import RecipeError
from graphcl.recipes import load_recipe
from graphcl.recipes.recipe import recipe_keys
from graphcl.research.choosing import portfolio
from graphcl.research.choosing.portfolio import Candidate, candidates, load_portfolio

BASE = load_recipe("default")


def test_the_shipped_table_holds_recipes():
    listed = load_portfolio()
    assert len(listed) >= 9
    assert len({one.name for one in listed}) == len(listed)
    for candidate in listed:
        assert candidate.values.keys() <= set(recipe_keys())
        BASE.with_values(**candidate.values)  # every value is allowed


def test_candidates_are_the_table_s_first_and_differ(monkeypatch):
    listed = [("a", {}), ("b", {"layers": 1}), ("c", {"layers": 2}), ("d", {"layers": 1, "dim": 8})]
    table = tuple(Candidate(name, values) for name, values in listed)
    monkeypatch.setattr(portfolio, "load_portfolio", lambda: table)
    assert BASE.layers == 2  # so `c` comes to the same as `a`
    found = candidates(BASE, 3)
    assert [candidate.name for candidate, _ in found] == ["a", "b", "d"]
    assert [recipe for _, recipe in found] == [
        BASE,
        BASE.with_values(layers=1),
        BASE.with_values(layers=1, dim=8),
    ]
    assert [one.name for one, _ in candidates(BASE, 3, fixed=["dim"])] == ["a", "b", "drawn-1"]
    (fixed, recipe) = candidates(BASE, 2, fixed=["layers"])[1]
    assert (fixed.values, recipe.layers, recipe.dim) == ({"dim": 8}, 2, 8)


def test_beyond_the_table_recipes_are_drawn_and_more_of_them_keep_the_first():
    few, many = candidates(BASE, 5, seed=3), candidates(BASE, 40, seed=3)
    assert many[:5] == few
    recipes = [recipe for _, recipe in many]
    assert len(set(recipes)) == 40
    assert candidates(BASE, 40, seed=4)[:5] == few
    assert [r for _, r in candidates(BASE, 40, seed=4)] != recipes


def test_there_may_be_nothing_left_to_try():
    alone = candidates(BASE, 50, fixed=recipe_keys())
    assert [recipe for _, recipe in alone] == [BASE]


def test_what_trains_alike_is_tried_once():
    def same(recipe):
        return recipe.with_values(feature_scaling="none")

    recipes = [same(recipe) for _, recipe in candidates(BASE, 12, same=same)]
    assert len(set(recipes)) == 12


def test_an_unknown_key_is_refused(monkeypatch):
    class Text:
        def __truediv__(self, name):
            return self

        def read_text(self):
            return '[[trial]]\nname = "a"\nlayer = 1\n'

    monkeypatch.setattr(portfolio.resources, "files", lambda _: Text())
    with pytest.raises(RecipeError, match=r"portfolio\.toml: a: unknown key 'layer'"):
        load_portfolio()
