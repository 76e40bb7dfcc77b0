"""The documentation as a site: `python -m sphinx -W -n docs build/docs`.

Nothing is loaded from elsewhere, neither to build the pages nor to read them.
"""

import pathlib
import re
import sys
from typing import Any

_DOCS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(_DOCS.parent))

import bamboo_jax  # noqa: E402

project = "bamboo_jax"
author = "the authors of bamboo_jax"
release = version = bamboo_jax.__version__
html_title = f"bamboo_jax {version}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["deploy"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
highlight_language = "text"

html_theme = "furo"
html_show_copyright = False
html_show_sphinx = False

# Docstrings are plain text with code between single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True}
add_module_names = False
# Types that have no page here: of other libraries, and internal ones.
nitpick_ignore_regex = [("py:.*", r"(?!bamboo_jax).*")]
nitpick_ignore = [
    ("py:class", f"bamboo_jax.{name}")
    for name in (
        "config.config.Config",
        "config.config.RedundancySection",
        "data.corpus.ManifestEntry",
        "models.model.Pace",
        "plan.cost_model.Profile",
        "plan.planner.Plan",
        "schedule.timeline.Timeline",
        "sim.loop.Policy",
        "sim.speed.Table",
    )
]


def _add_toctrees(app: Any, page: str, source: list[str]) -> None:
  """Makes the sidebar of "All pages" in index.md, a part of each row."""
  if page != "index":
    return
  row = r"^\| \*\*(.+?)\*\* \| (.*) \|$"
  for title, links in re.findall(row, source[0], re.MULTILINE):
    pages = re.findall(r"\]\(([\w/]+)\.md\)", links)
    lines = ("", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", "")
    source[0] += "\n".join(lines)


def setup(app: Any) -> None:
  """Makes this configuration an extension of Sphinx."""
  app.connect("source-read", _add_toctrees)
