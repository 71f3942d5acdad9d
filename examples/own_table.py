"""Embed a graph from two tables, and find the nodes most similar to one of them by its id."""

from pathlib import Path

import numpy as np

import graphcl

Path("flights.csv").write_text(
    "from,to,per_week\n"
    "Lisbon,Porto,40\nLisbon,Madrid,35\nPorto,Madrid,20\nMadrid,Paris,50\n"
    "Paris,Lyon,30\nParis,Zürich,25\nZürich,Vienna,28\nVienna,Graz,21\nLyon,Zürich,7\n"
)
Path("cities.csv").write_text(
    "id,population,coast,language\n"
    "Lisbon,0.55,1,Portuguese\nPorto,0.23,1,Portuguese\nMadrid,3.3,0,Spanish\n"
    "Paris,2.1,0,French\nLyon,0.52,0,French\nZürich,0.43,0,German\nVienna,2.0,0,German\n"
    "Graz,0.3,0,German\n"
)

graph = graphcl.read_tables("flights.csv", "cities.csv", one_hot=("language",), weight="per_week")
print(graph)

# Few dense features: drop few of them, and leave their scale alone.
model = graphcl.GraphCL(epochs=50, dim=16, feature_drop=0.2, feature_scaling="none")
z = model.set_output(transform="pandas").fit_transform(graph)

unit = z.div(np.linalg.norm(z, axis=1), axis=0)
similar = (unit @ unit.loc["Vienna"]).drop("Vienna").nlargest(3)
print("most similar to Vienna:", ", ".join(similar.index))

model.save("runs/flights")
