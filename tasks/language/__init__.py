"""Small languages with known rules: does a model put together what it has learnt? Use it as `interp.tasks.language`."""

from tasks.language.addition import Addition
from tasks.language.ontology import Ontology
from tasks.language.scan import Scan
from tasks.language.scan_grammar import interpret_command, list_commands
from tasks.language.sequences import spell

__all__ = ["Addition", "Ontology", "Scan", "interpret_command", "list_commands", "spell"]
