"""The choice of a recipe without labels: what is tried, what a trial shows, which one is taken."""
