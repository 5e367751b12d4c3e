"""Measurements: each file is one command, and writes its table to results/."""
