"""DP-GIBO: private optimization in many dimensions, from gradients of a surrogate."""
