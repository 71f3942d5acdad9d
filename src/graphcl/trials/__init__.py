"""Any system, trained and scored: one row of results each, for one seed or many."""
