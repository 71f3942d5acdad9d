# A run as a service, on a CPU, from wheels alone. Build it in the repository:
#   docker build -t graphcl .
# On x86, PyPI's torch brings gigabytes of CUDA libraries. For a CPU alone, name the index of torch's
# CPU wheels, which PyTorch's installation page has ("Compute Platform: CPU", after --index-url):
#   docker build -t graphcl --build-arg TORCH_INDEX=ADDRESS .
# Serve a run that was trained before, read-only; options of `graphcl serve` may follow:
#   docker run -p 8000:8000 -e GRAPHCL_TOKEN -v "$PWD/runs/cora:/model:ro" graphcl
FROM python:3.11-slim

RUN useradd --create-home --uid 10001 graphcl
WORKDIR /home/graphcl
# What changes seldom comes first, so that a change of the sources installs the sources alone.
COPY constraints.txt ./
ARG TORCH_INDEX
RUN pip install --no-cache-dir --only-binary :all: -c constraints.txt \
  ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
  e = p['optional-dependencies']; print(*p['dependencies'], *e['serve'], *e['tables'], sep='\n')" \
  > requirements.txt \
  && pip install --no-cache-dir --only-binary :all: -c constraints.txt -r requirements.txt
COPY README.md LICENSE NOTICE ./
COPY src src
RUN pip install --no-cache-dir --no-deps .
USER graphcl
ENV OMP_NUM_THREADS=1 NUMBA_CACHE_DIR=/home/graphcl/.cache/numba
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["graphcl", "serve", "/model", "--host", "0.0.0.0", "--port", "8000"]
