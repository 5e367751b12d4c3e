"""Local Bayesian optimization without privacy, with fitted hyperparameters."""
