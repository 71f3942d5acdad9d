"""The report: from a run to one HTML file."""
