"""The parts of :mod:`benchmarks.local_bo`: tasks, rivals, methods and tables."""
