"""Multiple choice: how likely a model finds the continuations of a prompt, and what that owes to chosen heads."""
