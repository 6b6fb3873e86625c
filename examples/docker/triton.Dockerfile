# tritune inside NVIDIA's Triton, for its native backends. In tritune's checkout:
#   docker build -f examples/docker/triton.Dockerfile -t tritune-triton .
# Then in the folder of a model:
#   docker run --rm --gpus all --shm-size 1g --user "$(id -u):$(id -g)" -v "$PWD:/work" tritune-triton \
#       optimize --model m.onnx --p99 50ms --server local
# Releases before 24.11 have Python 3.10, which is too old. An engine loads only in the TensorRT that built it, so the
# package has the release's version.
FROM nvcr.io/nvidia/tritonserver:25.10-py3 AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv
RUN python3 -m venv /opt/tritune
COPY . .
RUN /opt/tritune/bin/pip install -c constraints.txt '.[tensorrt]' 'tensorrt==10.13.3.*'

FROM nvcr.io/nvidia/tritonserver:25.10-py3
COPY --from=build /opt/tritune /opt/tritune
ENV PATH=/opt/tritune/bin:$PATH HOME=/tmp ORT_DISABLE_TELEMETRY=1
USER 1000:1000
WORKDIR /work
CMD ["optimize", "--help"]
