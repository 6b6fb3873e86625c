"""Talk to Triton over HTTP/1.1 and gRPC."""
