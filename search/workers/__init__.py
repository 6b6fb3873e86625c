"""Trials on other machines."""
