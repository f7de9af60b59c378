"""`interp dynamics`: train the models of a lab, resume it, or only estimate it.

>>> DYNAMICS.choose("small", seeds=2).seeds
2
>>> DYNAMICS.choose("smal")
Traceback (most recent call last):
interp.errors.InputError: There is no lab 'smal'; there are small, pools, published. Did you mean small?
"""

from analyses.copying_dynamics.keep import keep_model
from analyses.copying_dynamics.lab import LABS
from analyses.copying_dynamics.page import write_lab_page
from analyses.labs.command import LabCommand

DYNAMICS = LabCommand(name="dynamics", labs=LABS, keep=keep_model, write_page=write_lab_page)
