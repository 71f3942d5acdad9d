# A run as a service, on a CPU; from wheels of PyPI alone. Build it in the repository:
#   docker build -t graphcl .
# Serve a run that was trained before, read-only:
#   docker run -p 8000:8000 -e GRAPHCL_TOKEN -v "$PWD/runs/cora:/model:ro" graphcl
FROM python:3.11-slim

RUN useradd --create-home --uid 10001 graphcl
WORKDIR /home/graphcl
COPY pyproject.toml README.md LICENSE NOTICE constraints.txt ./
COPY src src
RUN pip install --no-cache-dir --only-binary :all: -c constraints.txt ".[serve,tables]"
USER graphcl
ENV OMP_NUM_THREADS=1 NUMBA_CACHE_DIR=/home/graphcl/.cache/numba
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["graphcl", "serve", "/model"]
CMD ["--host", "0.0.0.0", "--port", "8000"]
