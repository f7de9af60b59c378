"""Figures for reports (matplotlib, as SVG that follows the page's theme) and attention views (CircuitsVis)."""

from interp.figures.ablation import Effect, ablation
from interp.figures.attention import AttentionView, bundle, show_attention
from interp.figures.colour import css_variables
from interp.figures.curves import Curve, learning_curves
from interp.figures.flow import flow_picture
from interp.figures.heads import head_map, head_ranking
from interp.figures.style import Picture
from interp.figures.svg import to_svg

__all__ = [
    "AttentionView",
    "Curve",
    "Effect",
    "Picture",
    "ablation",
    "bundle",
    "css_variables",
    "flow_picture",
    "head_map",
    "head_ranking",
    "learning_curves",
    "show_attention",
    "to_svg",
]
