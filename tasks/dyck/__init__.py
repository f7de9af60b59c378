"""Strings of nested brackets, with depth shapes that are never trained. Use it as `interp.tasks.dyck`."""

from tasks.dyck.answers import ClosingAnswers
from tasks.dyck.corpora import list_shapes
from tasks.dyck.strings import Strings, draw_strings, find_openers
from tasks.dyck.task import Dyck

__all__ = ["ClosingAnswers", "Dyck", "Strings", "draw_strings", "find_openers", "list_shapes"]
