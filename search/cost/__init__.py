"""Prices, cost and fleets."""
