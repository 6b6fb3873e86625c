"""Start, watch and talk to a Triton."""
