# The load generator alone, for the smoke test.
# Beside this file:  docker build -f loadtest.Dockerfile -t tritune-loadtest:0.1.0 .
FROM python:3.11-slim
ENV HOME=/tmp PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /install
COPY constraints.txt tritune-0.1.0-py3-none-any.whl ./
RUN pip install --no-deps -c constraints.txt \
    locust \
    numpy \
    ./tritune-0.1.0-py3-none-any.whl
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["loadtest"]
