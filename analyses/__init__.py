"""The questions: each analysis ties tasks and measurements into one result. Use it as `interp.analyses`."""

DISTRIBUTION = "interp-toolkit"
"""Marks this package as ours: `interp` compares it, since other projects also have a package called `analyses`."""
