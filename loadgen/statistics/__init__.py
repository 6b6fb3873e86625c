"""Tests of latency limits, and the search for the highest rate that meets them."""
