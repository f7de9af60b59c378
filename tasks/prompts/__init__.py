"""Prompts in English for pretrained models: cut into the tokens of the model's own tokenizer, with named positions."""

from tasks.prompts.fuzzy_copying import FuzzyCopying
from tasks.prompts.icl_classification import ICLClassification
from tasks.prompts.ioi import IOI, IOIBatch
from tasks.prompts.ioi_choices import IOIChoices
from tasks.prompts.rules import ChoiceItem, RuleTask

__all__ = ["IOI", "ChoiceItem", "FuzzyCopying", "ICLClassification", "IOIBatch", "IOIChoices", "RuleTask"]
