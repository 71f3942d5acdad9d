"""Evaluation: scores of arrays. Nothing here gets a model, so no `y` can reach training."""
