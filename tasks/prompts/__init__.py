"""Prompts in English for pretrained models: cut into the tokens of the model's own tokenizer, with named positions."""

from tasks.prompts.ioi import IOI, IOIBatch

__all__ = ["IOI", "IOIBatch"]
