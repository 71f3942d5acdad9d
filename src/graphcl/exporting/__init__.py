"""Models and embeddings for other programs: `graphcl export`, and `graphcl embed --to`.

- `program`: the encoder over plain tensors, as ONNX or as a `torch.export` program.
- `card`: a folder with weights, configuration and a model card.
- `vectors`: embeddings as a stream of record batches, into files and vector indexes.
"""
