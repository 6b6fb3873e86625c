# The model repository as an OCI image, for the component repository-image. In this folder:
#   docker build -f images/models.Dockerfile -t registry.example.com/small-cnn-models:8b029c4d457f .
FROM busybox:1.37
COPY model_repository /model_repository
USER 1000:1000
