"""When copying out of distribution appears in small models, and what appears with it."""
