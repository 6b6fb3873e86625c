# The server that was measured: Triton 2.51.0, TensorRT in its Python backend.
# Beside this file:  docker build -f triton.Dockerfile -t m-triton:3772486a4ecd .
FROM python:3.11-slim-bookworm AS python
FROM nvidia/cuda:13.0.1-base-ubuntu24.04
COPY --from=python /usr/local /usr/local
RUN apt-get update && \
    apt-get install -y --no-install-recommends ca-certificates libexpat1 libffi8 libsqlite3-0 libssl3t64 && \
    rm -rf /var/lib/apt/lists/* && ldconfig
ENV HOME=/tmp PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 ORT_DISABLE_TELEMETRY=1
WORKDIR /install
COPY constraints.txt tritune-0.1.0-py3-none-any.whl ./
# Packages are named and pinned one by one, and nothing else comes along.
RUN pip install --no-deps -c constraints.txt \
    cuda-bindings \
    numpy \
    tensorrt \
    ./tritune-0.1.0-py3-none-any.whl
USER 1000:1000
WORKDIR /
ENTRYPOINT ["python", "-I", "-m", "model_repo.server.entrypoint"]
