"""The releases of Kusner et al. (2015): algorithms, sensitivities, utility."""
