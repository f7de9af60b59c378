"""`interp grokking`: train the models of a lab, resume it, or only estimate it.

>>> GROKKING.choose("small", seeds=3).seeds
3
>>> GROKKING.choose("papers")
Traceback (most recent call last):
interp.errors.InputError: There is no lab 'papers'; there are small, tense, paper. Did you mean paper?
"""

from analyses.labs.command import LabCommand
from analyses.structural_grokking.keep import keep_model
from analyses.structural_grokking.lab import LABS
from analyses.structural_grokking.page import write_lab_page

GROKKING = LabCommand(name="grokking", labs=LABS, keep=keep_model, write_page=write_lab_page)
