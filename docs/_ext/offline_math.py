"""Formulas as MathML, which browsers draw by themselves: no script and no request, unlike MathJax from its CDN."""

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx


def _write(translator: nodes.NodeVisitor, node: nodes.Element, *, as_block: bool) -> None:
    translator.body.append(str(latex2mathml.tex2mathml(node.astext(), as_block=as_block)))
    raise nodes.SkipNode


def _write_inline(translator: nodes.NodeVisitor, node: nodes.Element) -> None:
    _write(translator, node, as_block=False)


def _write_block(translator: nodes.NodeVisitor, node: nodes.Element) -> None:
    _write(translator, node, as_block=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer that `html_math_renderer = "mathml"` chooses."""
    app.add_html_math_renderer("mathml", inline_renderers=(_write_inline, None), block_renderers=(_write_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
