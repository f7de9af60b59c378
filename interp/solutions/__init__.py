"""Which solution a model found for a task with anchors: what it answers, and the circuit it answers by."""
