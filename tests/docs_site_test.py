"""The documentation is built without warnings, from the code as it is."""

import pathlib
import re
import subprocess
import sys
import tempfile

from absl.testing import parameterized
from ml_collections import config_dict

from bamboo_jax.cli import listing
from bamboo_jax.configs import default

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_DOCS = _ROOT / "docs"
sys.path.insert(0, str(_DOCS))

from figures import draw  # noqa: E402
import generated  # noqa: E402

sys.path.remove(str(_DOCS))


def _list_options(values, prefix=""):
  for name, value in values.items():
    yield prefix + name
    if hasattr(value, "items"):
      yield from _list_options(value, f"{prefix}{name}.")


class SiteTest(parameterized.TestCase):

  def test_builds_without_warnings(self):  # JAX, 20 commands, 40 pages: 20 s.
    out = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    options = ("-W", "-n", "-q", "--keep-going")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, _DOCS, out],
        capture_output=True,
        text=True,
        timeout=300,
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    self.assertIn("pipeline.num_stages", self._read(out, "options"))
    commands = self._read(out, "commands")
    for name in listing.read_summaries(_ROOT / "launch"):
      self.assertIn(f"<h2>bamboo {name}<", commands)
    self.assertIn("--random_kills: ", commands)
    self.assertNotIn(str(_ROOT), commands)
    self.assertIn("from_loss", self._read(out, "api"))
    for page in out.rglob("*.html"):
      loaded = r'(?:src|<link[^>]* href|url)[=(]"?(https?://[^")> ]*)'
      self.assertEqual(re.findall(loaded, page.read_text()), [], msg=page)

  def _read(self, out, name):
    return (out / "reference" / f"{name}.html").read_text()

  def test_every_option_has_a_row(self):
    code = (_ROOT / "configs" / "default.py").read_text()
    config = default.get_config()
    found = [o.name for o in generated.read_options(code, config)]
    self.assertCountEqual(found, _list_options(config))

  def test_comments_belong_to_options(self):
    code = """
def get_config():
  return create(
      # Two lines
      # of comment.
      a=1,
      **_more(),
      b=2,
  )


def _more():
  return dict(
      part=dict(  # Of a part.
          c=3,  # Seconds | hours.
          # None: as `c`.
          d=None,
          e=dict(f=1, g=2),  # On a line.
          h=dict(),
      )
  )
"""
    empty = config_dict.ConfigDict()
    part = dict(c=3, d=None, e=dict(f=1, g=2), h=empty)
    config = dict(a=1, b=2, part=part)
    options = generated.read_options(code, config)
    self.assertEqual(
        options,
        [
            ("a", "1", "Two lines of comment."),
            ("part", "", "Of a part."),
            ("part.c", "3", "Seconds | hours."),
            ("part.d", "None", "None: as `c`."),
            ("part.e", "", "On a line."),
            ("part.e.f", "1", ""),
            ("part.e.g", "2", ""),
            ("part.h", "{}", ""),
            ("b", "2", ""),
        ],
    )

  def test_help_of_a_command(self):
    text = """Does it.

bamboo do --config=FILE \\
  --now
bamboo do

More.

flags:

/home/me/launch/do.py:
  --now: At once.
    (default: 'false')

Try --helpfull to get a list of all flags.
"""
    self.assertEqual(
        generated.render_command("do", text, needs_tests=False),
        """## bamboo do

Does it.

```
bamboo do --config=FILE \\
  --now
bamboo do
```

More.

```
--now: At once.
  (default: 'false')
```
""",
    )

  def test_help_without_flags(self):
    text = "Lists it.\n\nbamboo list\n\nflags:\n\nTry --helpfull for all.\n"
    self.assertEqual(
        generated.render_command("list", text, needs_tests=True),
        "## bamboo list\n\nLists it.\n\n```\nbamboo list\n```\n\n"
        "It needs a clone of the repository.\n",
    )

  def test_mentions_of_pages_are_links(self):
    self.assertEqual(
        generated.link_pages("see docs/engine.md, `docs/guides/cost.md`."),
        "see [engine](../engine.md), [cost](../guides/cost.md).",
    )

  @parameterized.parameters(*draw.FIGURES)
  def test_figures_are_those_of_the_script(self, name):
    found = (_DOCS / "figures" / f"{name}.svg").read_text()
    self.assertEqual(found, str(draw.FIGURES[name]()))
