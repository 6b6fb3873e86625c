# loadtest for the smoke test, built from a checkout of tritune 0.1.0:
#   docker build -f images/loadtest.Dockerfile -t tritune-loadtest:0.1.0 PATH_TO_TRITUNE
FROM python:3.12-slim
COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY deploy /src/deploy
COPY loadgen /src/loadgen
COPY model_repo /src/model_repo
COPY optimizer /src/optimizer
COPY search /src/search
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && \
    pip install --no-cache-dir -c /src/constraints.txt /src && \
    apt-get purge -y gcc libc6-dev && apt-get autoremove -y && rm -rf /src /var/lib/apt/lists/*
USER 1000:1000
ENTRYPOINT ["loadtest"]
