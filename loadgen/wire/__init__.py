"""Talk to Triton over HTTP/1.1 and gRPC: the load itself, and questions outside of it."""
