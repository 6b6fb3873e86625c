# The server that was measured: Triton 2.51.0, ONNX Runtime 1.31.1 in its Python backend.
# Beside this file:  docker build -f triton.Dockerfile -t small-cnn-triton:52b732a99c0a .
FROM python:3.11-slim
ENV HOME=/tmp PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 ORT_DISABLE_TELEMETRY=1
WORKDIR /install
COPY constraints.txt tritune-0.1.0-py3-none-any.whl ./
# Packages are named and pinned one by one, and nothing else comes along.
RUN pip install --no-deps -c constraints.txt \
    numpy \
    nvidia-pytriton \
    onnxruntime-gpu \
    ./tritune-0.1.0-py3-none-any.whl && \
    rm "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"/onnxruntime/capi/libonnxruntime_providers_cuda.so
USER 1000:1000
WORKDIR /
ENTRYPOINT ["python", "-I", "-m", "model_repo.server.entrypoint"]
