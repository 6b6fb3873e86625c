"""Load generators compared on servers whose latency law is known."""
