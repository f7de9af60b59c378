"""When small models come to compute along the tree of a sentence, and what goes along with it."""
