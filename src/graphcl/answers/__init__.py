"""Answers after a training: labels for nodes without one, links, groups, similar nodes.

All of them take embeddings, or a fitted model and its graph. Nothing here changes a model.
"""
