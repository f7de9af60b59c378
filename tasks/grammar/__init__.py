"""Grammars with gold trees, and tasks whose training can't tell a rule about trees from one about positions.

Use it as `interp.tasks.grammar`.
"""

from tasks.grammar.constructions import CONSTRUCTIONS, Construction, split_by_construction
from tasks.grammar.grammar import Derivation, Grammar, Sentence, draw_sentences, list_derivations, read_grammar
from tasks.grammar.question_formation import QuestionFormation
from tasks.grammar.tense_inflection import TenseInflection

__all__ = [
    "CONSTRUCTIONS",
    "Construction",
    "Derivation",
    "Grammar",
    "QuestionFormation",
    "Sentence",
    "TenseInflection",
    "draw_sentences",
    "list_derivations",
    "read_grammar",
    "split_by_construction",
]
