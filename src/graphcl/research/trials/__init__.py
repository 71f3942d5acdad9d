"""Trains and scores any system, for one seed or many; each training gives one row of results."""
