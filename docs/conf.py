"""How the documentation is built: `python -m sphinx -W --keep-going -q -b html docs docs/_build/html`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import interp

project = "interp-toolkit"
author = "The interp-toolkit authors"
version = release = interp.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "offline_math"]
exclude_patterns = ["_build"]
default_role = "code"  # docstrings write `names` so

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # nbmake runs the notebook

html_math_renderer = "mathml"
html_theme = "furo"
html_title = "interp-toolkit"
html_static_path = ["_static"]
html_css_files = ["pictures.css"]
html_show_copyright = False
html_copy_source = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signatures have them
autodoc_preserve_defaults = True
