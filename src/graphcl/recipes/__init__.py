"""Recipes: complete configurations, one per dataset of the paper, and `default`."""

from graphcl.recipes.recipe import Recipe, load_recipe, recipe_for, recipe_names

__all__ = ["Recipe", "load_recipe", "recipe_for", "recipe_names"]
