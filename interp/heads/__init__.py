"""What each attention head does: scores from its attention and its output, and causal confirmation."""
