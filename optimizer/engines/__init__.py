"""TensorRT engines: built, cached and timed."""
