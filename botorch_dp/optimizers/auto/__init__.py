"""One call that plans and runs the best method for a budget."""
