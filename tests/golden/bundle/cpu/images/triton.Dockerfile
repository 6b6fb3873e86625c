# Triton with what the runtime of model_repository_embedded needs:
#   docker build -f images/triton.Dockerfile -t registry.example.com/small-cnn-triton:8b029c4d457f .
FROM nvcr.io/nvidia/tritonserver:24.10-py3
RUN pip install --no-cache-dir onnxruntime numpy
USER 1000:1000
