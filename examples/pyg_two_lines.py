"""From a PyTorch Geometric `Data` to node embeddings in two lines."""

from torch_geometric.datasets import KarateClub

import graphcl

data = KarateClub()[0]

model = graphcl.GraphCL(epochs=50, dim=32)
z = model.fit_transform(data)  # numpy, float32, one row per node

print(f"{data.num_nodes} members of a karate club, {z.shape[1]} numbers each")
