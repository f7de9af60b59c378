"""Anchor functions: does a model compose, use a symmetry, or memorise? Use it as `interp.tasks.anchor`."""

from tasks.anchor.composite import Composite
from tasks.anchor.designs import WRONG_SHIFTS, altered_pair, dropped_pairs, noise_groups
from tasks.anchor.families import FAMILIES, classification, composition, identity, synonym
from tasks.anchor.functions import PAPER_FUNCTION, AnchorFunction
from tasks.anchor.lookup import ReadingComprehension, Recitation, WorkingMemory
from tasks.anchor.one_anchor import MultiAnchor, StatisticalOutput
from tasks.anchor.permutation import permutation_anchors
from tasks.anchor.scores import DeviationHistogram, commutativity, deviation_histogram
from tasks.anchor.splits import is_test_key, published_amounts
from tasks.anchor.two_tasks import TwoTasks

__all__ = [
    "FAMILIES",
    "PAPER_FUNCTION",
    "WRONG_SHIFTS",
    "AnchorFunction",
    "Composite",
    "DeviationHistogram",
    "MultiAnchor",
    "ReadingComprehension",
    "Recitation",
    "StatisticalOutput",
    "TwoTasks",
    "WorkingMemory",
    "altered_pair",
    "classification",
    "commutativity",
    "composition",
    "deviation_histogram",
    "dropped_pairs",
    "identity",
    "is_test_key",
    "noise_groups",
    "permutation_anchors",
    "published_amounts",
    "synonym",
]
