"""Answers from embeddings: which nodes are similar."""
