"""Benchmarks. Each file is a command that writes its tables to results/."""
