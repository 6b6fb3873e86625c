"""Variants of a model in other number formats."""
