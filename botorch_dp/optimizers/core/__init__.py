"""What all optimizers share: ask, tell, run, state, and who holds private values."""
