# tritune and its embedded Triton for a machine without a GPU. In tritune's checkout:
#   docker build -f examples/docker/cpu.Dockerfile -t tritune .
# Then in the folder of a model:
#   docker run --rm --shm-size 1g --user "$(id -u):$(id -g)" -v "$PWD:/work" tritune optimize --model m.onnx --p99 50ms
FROM python:3.11.13-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python3 -m venv /opt/tritune
COPY requirements-cpu.txt ./
RUN /opt/tritune/bin/pip install --no-deps -r requirements-cpu.txt
COPY . .
RUN /opt/tritune/bin/pip install --no-deps .

FROM python:3.11.13-slim-bookworm
COPY --from=build /opt/tritune /opt/tritune
ENV PATH=/opt/tritune/bin:$PATH HOME=/tmp ORT_DISABLE_TELEMETRY=1
USER 1000:1000
WORKDIR /work
CMD ["optimize", "--help"]
