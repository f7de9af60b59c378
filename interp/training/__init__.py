"""Train a small model on a task: configuration, loop, learning-rate schedule, runs that survive being killed."""
