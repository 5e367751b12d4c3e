"""Optimizers that are NOT private, to compare the private ones with."""
