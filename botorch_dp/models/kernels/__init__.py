"""Kernels with derivatives that are exact at coincident points."""
