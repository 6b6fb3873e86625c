# A worker of a search, with the model inside; built from a checkout of tritune 0.1.0:
#   docker build -f images/worker.Dockerfile --build-context model=FOLDER_OF_THE_MODEL -t tritune-worker:0.1.0 PATH_TO_TRITUNE
FROM python:3.11-slim-bookworm
COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY deploy /src/deploy
COPY loadgen /src/loadgen
COPY model_repo /src/model_repo
COPY optimizer /src/optimizer
COPY search /src/search
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && \
    pip install --no-cache-dir -c /src/constraints.txt '/src[embedded,postgresql]' && \
    apt-get purge -y gcc libc6-dev && apt-get autoremove -y && rm -rf /src /var/lib/apt/lists/*
COPY --from=model . /model/
ENV PYTHONPATH=/model
USER 1000:1000
ENTRYPOINT ["optimize"]
