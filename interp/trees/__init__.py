"""Does a model compute along a tree: how much each span's states depend on what is outside it, and the trees that follow."""
