"""A run whose graph changes: `graphcl update`."""
