# A worker of a search, with the model inside. Beside this file:
#   docker build -f worker.Dockerfile --build-context model=FOLDER_OF_THE_MODEL -t tritune-worker:0.1.0 .
FROM python:3.11-slim
ENV HOME=/tmp PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /install
COPY constraints.txt tritune-0.1.0-py3-none-any.whl ./
RUN pip install -c constraints.txt './tritune-0.1.0-py3-none-any.whl[embedded,postgresql]'
COPY --from=model . /model/
ENV PYTHONPATH=/model
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["optimize"]
