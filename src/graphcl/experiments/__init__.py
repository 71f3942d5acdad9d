"""Kept for code written for version 0.1.0."""
