"""The common bridge: the subspace through which previous-token heads and induction heads compose, and its controls."""
