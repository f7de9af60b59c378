"""How complex are a model's weights, its attention and its representations: ranks, condensation, norms, order."""
