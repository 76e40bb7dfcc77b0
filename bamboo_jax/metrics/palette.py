"""The colours of pages, figures and pictures of the docs, by what they mean.

Light ones are Okabe and Ito's, which most colour-blind readers can tell apart;
dark ones keep their hues, on a dark ground.
"""

from collections.abc import Mapping
from typing import NamedTuple

BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
RED, ORANGE, PINK = "#D55E00", "#E69F00", "#CC79A7"
YELLOW, PURPLE, GREY = "#F0E442", "#5F4690", "#8A9298"


class Shade(NamedTuple):
  """A colour on a white ground, and on a dark one."""

  light: str
  dark: str


# By category of `slot.TrackSlot`.
PASSES = {
    "forward": Shade(SKY, "#56B4E9"),
    "backward": Shade(BLUE, "#2168A2"),
    "redundant": Shade(PINK, "#F2C4DC"),
    "transfer": Shade(ORANGE, "#B97717"),
    "reduce": Shade(GREEN, "#2FC79B"),
    "update": Shade(RED, "#E2673A"),
    "other": Shade(GREY, "#59646C"),
}
# By kind of node time, see `accounting.account`; in the order of bars.
KINDS = {
    "useful": Shade(BLUE, "#4AA8E0"),
    "communication": Shade(SKY, "#256CA0"),
    "redundant": Shade(PINK, "#CC79A7"),
    "bubble": Shade("#BBC2C7", "#59646C"),
    "recovery": Shade(ORANGE, "#FF9350"),
    "checkpoint": Shade("#A88F00", "#A07A10"),
    "restart": Shade(PURPLE, "#B39DDB"),
    "lost": Shade(RED, "#D9453D"),
    "idle": Shade(GREY, "#98A2AA"),
}
ZONES = (
    Shade(BLUE, "#4AA8E0"),
    Shade(ORANGE, "#FF9350"),
    Shade(GREEN, "#2FC79B"),
    Shade(PINK, "#CC79A7"),
    Shade(PURPLE, "#B39DDB"),
    Shade("#A88F00", "#E8C34A"),
    Shade(SKY, "#9AD4F5"),
)


def contrast(one: str, other: str) -> float:
  """Returns the contrast of two colours as WCAG defines it, from 1 to 21."""
  low, high = sorted(map(_luminance, (one, other)))
  return (high + 0.05) / (low + 0.05)


def ink(ground: str) -> str:
  """Returns the colour of text on `ground`: "black" or "white"."""
  return "black" if contrast(ground, "#000000") >= contrast(ground, "#FFFFFF") else "white"


def render_css() -> str:
  """Returns the shades as variables of CSS: --pass-forward, --zone-0; "-ink" of text on them."""
  groups: dict[str, Mapping[str, Shade]] = {
      "pass": PASSES,
      "kind": KINDS,
      "zone": {str(i): shade for i, shade in enumerate(ZONES)},
  }
  shades = {f"{g}-{name}": s for g, found in groups.items() for name, s in found.items()}
  light, dark = (
      " ".join(f"--{n}: {s[i]}; --{n}-ink: {ink(s[i])};" for n, s in shades.items()) for i in (0, 1)
  )
  return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _luminance(colour: str) -> float:
  parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
  red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue
