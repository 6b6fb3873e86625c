"""Find the cheapest way to serve a model."""

import os

# Before anything imports ONNX Runtime, which else queues paths and a device id for a foreign host. Children and
# servers inherit it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
