"""The page itself: empty, to be filled by events, or with a value in it."""

from collections.abc import Mapping
import json
import pathlib
from typing import Any

from bamboo_jax.metrics import palette

_PAGE = pathlib.Path(__file__).with_name("page.html")
_OPENING = '<script type="application/json" id="value">'


def render(value: Mapping[str, Any] | None = None) -> str:
  """Returns the page; with the value of `contents.make`, it needs no server."""
  text = json.dumps(value, separators=(",", ":"))
  content = text.replace("</", "<\\/")  # It must not end the script.
  page = _PAGE.read_text(encoding="utf-8")
  empty = page.replace("/* palette */", palette.render_css())
  return empty.replace(f"{_OPENING}null<", f"{_OPENING}{content}<")
