"""Private release of the best candidate and of its value."""
