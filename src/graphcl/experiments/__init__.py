"""Experiments: many trainings, one table."""
