"""The documentation as a site: `python -m sphinx -W -n docs build/docs`.

Nothing is loaded from elsewhere, neither to build the pages nor to read them.
"""

import pathlib
import sys

_DOCS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(_DOCS.parent), str(_DOCS)]

import bamboo_jax  # noqa: E402

project = "bamboo_jax"
author = "the authors of bamboo_jax"
release = version = bamboo_jax.__version__
html_title = f"bamboo_jax {version}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "generated",  # docs/generated.py
]
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
        "data.corpus.CorpusManifest",
        "models.model.Pace",
        "plan.cost_model.Profile",
        "plan.planner.Plan",
        "plan.rows.Redundancy",
        "schedule.timeline.Timeline",
        "sim.loop.Policy",
        "sim.speed.Table",
    )
]
