"""The request for a load test: the load to send, the target, and the limits to meet."""
