"""One offline HTML file from any set of results."""

from analyses.report.page import Definition, Figure, ModelPart, Page, Section, render_page, write_page
from analyses.report.table import Link

__all__ = ["Definition", "Figure", "Link", "ModelPart", "Page", "Section", "render_page", "write_page"]
