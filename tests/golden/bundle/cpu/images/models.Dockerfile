# The model repository as an image, from which pods fill their volume. In the folder of the bundle:
#   docker build -f images/models.Dockerfile -t small-cnn-models:52b732a99c0a .
#   docker build -f images/models.Dockerfile --target native -t small-cnn-models:52b732a99c0a-native .
FROM busybox:1.37 AS native
COPY --chown=1000:1000 model_repository_native /model_repository
USER 1000:1000

FROM busybox:1.37
COPY --chown=1000:1000 model_repository /model_repository
USER 1000:1000
