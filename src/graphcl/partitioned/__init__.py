"""Work on graphs in parts: each process has one part, and rows at the boundaries travel."""
