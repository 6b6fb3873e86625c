"""The hardware of this machine, and limits for child processes."""
