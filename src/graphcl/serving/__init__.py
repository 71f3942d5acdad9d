"""A run as a small HTTP service: `graphcl serve`.

- `run`: what a run answers: embeddings, similar nodes, labels, links; no word of HTTP.
- `requests`: bodies of requests, JSON or Arrow, checked and bounded.
- `middleware`: what every request passes: host, token, rate, size, time; errors as JSON; counts;
  and connections that send nothing, which are closed.
- `app`: the addresses. `description`: what they take and give, for machines and readers.
- `page`: the live page: the report's map, and new nodes on it.

Nothing here opens a file by a name that a request contains.
"""
