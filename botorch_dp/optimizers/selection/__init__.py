"""Private selection: the best of a random number of training runs, for about one."""
