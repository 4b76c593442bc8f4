"""OneBasin: move posteriors of Bayesian neural networks into one basin."""
