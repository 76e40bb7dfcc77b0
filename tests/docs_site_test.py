"""The documentation says what the code says, and is built without warnings."""

import re
import sys

from absl.testing import parameterized

from bamboo_jax.launch import __main__
from tests import folders, samples
from tests.launch import commands

_ROOT = folders.ROOT
_DOCS = _ROOT / "docs"
sys.path.insert(0, str(_DOCS))

from figures import draw  # noqa: E402
import generated  # noqa: E402

sys.path.remove(str(_DOCS))


class SiteTest(folders.FolderCase):

  def test_repeats_the_code(self):  # The help of 25 commands: 5 s.
    done = commands.run(_DOCS / "generated.py", "--check")
    self.assertEqual((done.stdout, done.returncode), ("\n", 0), done.stderr)
    page = self._read_page("reference/options")
    self.assertIn("| `pipeline.num_stages` |", page)
    for name in __main__.read_summaries():
      self.assertIn(f"\n### bamboo {name}\n", page)
    self.assertIn("\n* `--random_kills`: ", page)
    self.assertNotIn(str(_ROOT), page)
    code = (_ROOT / "examples/plain.py").read_text()
    self.assertIn(code, self._read_page("guides/own_training"))

  def _read_page(self, name):
    return (_DOCS / f"{name}.md").read_text()

  def test_pages_need_no_build(self):
    api = self._read_page("reference/api")
    for path in _DOCS.rglob("*.md"):
      directives = re.findall(r"^[`:]{3,}\{.*", path.read_text(), re.MULTILINE)
      if path.name != "api.md":  # Docstrings, which `help` shows.
        self.assertEmpty(directives, msg=path)
    self.assertIn("help(bamboo_jax.train)", api)

  @parameterized.parameters(
      ("options", "| `seed` | `0` |"),
      ("examples/plain.py", "jax\n\n\ndef init(key):\n"),
      ("examples/plain.py, def make_data", "```python\ndef make_data():\n  x"),
  )
  def test_fills_parts(self, name, want):
    page = f"a\n<!-- generated: {name} -->\nOUTDATED\n<!-- end -->\nb\n"
    filled = generated.fill(page)
    self.assertIn(want, filled)
    self.assertNotIn("OUTDATED", filled)
    self.assertStartsWith(filled, f"a\n<!-- generated: {name} -->\n")
    self.assertEndsWith(filled, "\n<!-- end -->\nb\n")
    self.assertEqual(generated.fill(filled), filled)

  @samples.only_all
  def test_builds_without_warnings(self):  # JAX, and 25 pages: 10 s.
    out = self.folder
    options = ("-W", "-n", "-q", "--keep-going")
    done = commands.run("-m", "sphinx", *options, _DOCS, out)
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    self.assertIn("pipeline.num_stages", self._read(out, "options"))
    self.assertIn("<h3>bamboo train<", self._read(out, "options"))
    contents = (out / "index.html").read_text()
    for path in _DOCS.rglob("*.md"):
      page = path.relative_to(_DOCS).with_suffix(".html")
      if path != _DOCS / "index.md":
        self.assertIn(f'href="{page}"', contents)
    self.assertIn("from_loss", self._read(out, "api"))
    for page in out.rglob("*.html"):
      loaded = r'(?:src|<link[^>]* href|url)[=(]"?(https?://[^")> ]*)'
      self.assertEqual(re.findall(loaded, page.read_text()), [], msg=page)

  def _read(self, out, name):
    return (out / "reference" / f"{name}.html").read_text()

  def test_help_of_a_command(self):
    text = """Does it.

bamboo do \\
  --now

More.

flags:
  --now: At once, or a
    bit later. (default: 'false')

Others:
  --late: Later.
"""
    self.assertEqual(
        generated.render_command("do", text),
        """### bamboo do

Does it.

```
bamboo do \\
  --now
```

More.

* `--now`: At once, or a bit later. (default: 'false')

Others:

* `--late`: Later.
""",
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
