"""The colours of every figure, and the heat ramp.

Series colours are told apart by every common kind of colour blindness, and by mark and place as well. The ramp goes
from near the page's background to far from it, with evenly spaced lightness in Oklab
(Ottosson, https://bottosson.github.io/posts/oklab/), so that equal steps of a value look equal in either theme.

>>> ramp("light")[0], ramp("light")[-1]
('#edf0f4', '#0a3a6e')
>>> css_variables("dark").splitlines()[0]
'--figure-ink: #e6eaf0;'
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import numpy as np
from jaxtyping import Float

LIGHT: Mapping[str, str] = {
    "ink": "#1b2330",
    "muted": "#5a6473",
    "axis": "#aab3c0",
    "grid": "#e6e9ee",
    "accent": "#1f66ad",
    "second": "#c4500f",
    "third": "#5a1f6e",
    "fourth": "#117a65",
    "fifth": "#b3246b",
    "sixth": "#8a6a00",
    "control": "#78828f",
    "outline": "#d1400c",
}
DARK: Mapping[str, str] = {
    "ink": "#e6eaf0",
    "muted": "#a3adba",
    "axis": "#5b6675",
    "grid": "#2a323d",
    "accent": "#6fb3f2",
    "second": "#f59c5f",
    "third": "#a06aff",
    "fourth": "#45c9a5",
    "fifth": "#f47fb8",
    "sixth": "#d9b945",
    "control": "#939eac",
    "outline": "#ff8a4c",
}
LEVELS = 33
_RAMP_LIGHT = ("#edf0f4", "#c9dfec", "#7db8da", "#2f7fba", "#0a3a6e")
_RAMP_DARK = ("#1d242e", "#1d4868", "#2c7fae", "#7cc2dc", "#f3fbd8")


def css_variables(theme: Literal["light", "dark"]) -> str:
    """CSS declarations of every colour that `to_svg` writes as a variable."""
    colours = LIGHT if theme == "light" else DARK
    named = [f"--figure-{name}: {colour};" for name, colour in colours.items()]
    return "\n".join(named + [f"--heat-{level}: {colour};" for level, colour in enumerate(ramp(theme))])


@lru_cache
def ramp(theme: Literal["light", "dark"] = "light") -> tuple[str, ...]:
    """The heat colours from least to most: away from the page's background, evenly in Oklab lightness."""
    anchors = np.stack([_to_oklab(colour) for colour in (_RAMP_LIGHT if theme == "light" else _RAMP_DARK)])
    lightness = np.linspace(anchors[0, 0], anchors[-1, 0], LEVELS)
    order = np.argsort(anchors[:, 0])
    mixed = [np.interp(lightness, anchors[order, 0], anchors[order, channel]) for channel in (1, 2)]
    return tuple(_from_oklab(np.array(colour)) for colour in zip(lightness, *mixed, strict=True))


def choose_heat(values: Float[np.ndarray, "*shape"], vmin: float, vmax: float) -> list[str]:
    """The heat colour of each value, in flat order; values outside the range get its end."""
    span = max(vmax - vmin, np.finfo(float).tiny)
    levels = np.clip(np.rint((values.ravel() - vmin) / span * (LEVELS - 1)), 0, LEVELS - 1)
    colours = ramp()
    return [colours[int(level)] for level in levels]


_SRGB_TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LMS_TO_OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def _to_oklab(colour: str) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return _LMS_TO_OKLAB @ np.cbrt(_SRGB_TO_LMS @ linear)


def _from_oklab(oklab: np.ndarray) -> str:
    linear = np.linalg.solve(_SRGB_TO_LMS, np.linalg.solve(_LMS_TO_OKLAB, oklab) ** 3).clip(0, 1)
    channels = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(channel * 255):02x}" for channel in channels.clip(0, 1))
