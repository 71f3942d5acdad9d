"""The report: one HTML file that shows a run."""
