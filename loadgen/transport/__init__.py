"""Send and receive bytes on sockets, for the clients."""
