"""Surrogates of a gradient on a stream: stencils and dictionaries."""
