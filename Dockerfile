# A run as a service, on a CPU. Build with wheels alone:
#   docker build -t graphcl .
# Serve a run that was trained before, read-only:
#   docker run -p 8000:8000 -e GRAPHCL_TOKEN=... -v "$PWD/runs/cora:/run/model:ro" graphcl
FROM python:3.11-slim

RUN useradd --create-home --uid 10001 graphcl
WORKDIR /home/graphcl
COPY --chown=graphcl:graphcl pyproject.toml README.md LICENSE NOTICE constraints.txt ./
COPY --chown=graphcl:graphcl src src
RUN pip install --no-cache-dir --only-binary :all: "torch>=2.9" \
      --index-url https://download.pytorch.org/whl/cpu --extra-index-url https://pypi.org/simple \
    && pip install --no-cache-dir ".[serve,tables]"
USER graphcl
ENV NUMBA_CACHE_DIR=/home/graphcl/.cache/numba OMP_NUM_THREADS=1
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["graphcl", "serve", "/run/model"]
CMD ["--host", "0.0.0.0", "--port", "8000"]
