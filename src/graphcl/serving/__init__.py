"""A run as a small HTTP service: `graphcl serve`.

- `run`: what a run answers: embeddings, similar nodes, labels, links; which version of it answers,
  and the turn to another; no word of HTTP.
- `requests`: bodies of requests, JSON or Arrow, checked and bounded by pydantic's models.
- `middleware`: what every request passes: host, token, rate, time; errors as JSON; counts and log;
  and connections that send nothing, which are closed.
- `app`: the addresses, on FastAPI; bodies are read when there is a place for them.
- `pages`: what they take and give, for machines and readers; the live page.

Nothing here opens a file by a name that a request contains.
"""
