"""Systems side by side on many graphs, under one protocol: rows, a table and a picture."""
