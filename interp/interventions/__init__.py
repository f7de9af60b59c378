"""Change what a model computes, inside a `with`, always undone."""
