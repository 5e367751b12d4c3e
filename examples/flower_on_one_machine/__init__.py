"""A whole federation on one machine: a Flower server and its agents."""
