"""Prices and cost."""
