"""README: its code runs, its links lead somewhere, its numbers are right."""

import csv
import re
import subprocess
import sys
import types

from bamboo_jax.benchmarks import story
from tests import compilation, folders

_ROOT = folders.ROOT
_TEXT = (_ROOT / "README.md").read_text()
_PUBLISHED = _ROOT / "third_party" / "published"
_DEADLINE_SECS = 300


def _read(name):
  with open(_PUBLISHED / name, encoding="utf-8") as file:
    return list(csv.DictReader(file))


class ReadmeTest(folders.FolderCase):

  # Trains a tiny model twice for 100 steps: 10 s.
  def test_python_code_runs(self):
    (code,) = re.findall(r"^```python\n(.*?)^```", _TEXT, re.DOTALL | re.M)
    first_screen = _TEXT.splitlines()[:40]
    self.assertIn(code.splitlines()[-1], first_screen)
    (self.folder / "mine.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "mine.py"],
        cwd=self.folder,
        env=compilation.environ_of_users() | {"PYTHONPATH": str(_ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_DEADLINE_SECS,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn("step 6: n0 (stage 0/0) died; reroute: ", done.stdout)

  def test_links_lead_to_files(self):
    links = re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", _TEXT)
    self.assertGreater(len(links), 10)
    for link in links:
      self.assertTrue((_ROOT / link).exists(), msg=link)
      self.assertRegex(link, r"\.(md|png)$", msg="No text.")

  def test_is_a_landing_page(self):
    self.assertLess(len(_TEXT.splitlines()), 170)

  def test_output_is_that_of_the_quickstart(self):
    title = story.render_title(("plain", "failures"), (2, 4), spares=2)
    (output,) = re.findall(rf"```\n({re.escape(title)}.*?)```", _TEXT, re.DOTALL)
    for line in story.render_next(".venv/bin/bamboo"):
      self.assertIn(f"{line}\n", output)
    self.assertLen(re.findall(r"died; its shadow n\d took over", output), 5)
    summary = types.SimpleNamespace(steps=20, state_sha256="")
    control = dict(step=20, shares=2, state_sha256="...")
    self.assertIn(f"{story.render_control(control, summary)}\n", output)
    self.assertLen({*re.findall("state_sha256=(.*)", output)}, 1)

  def test_published_numbers(self):
    secs = [float(r["restart_s"]) for r in _read("parcae_restart_cost.csv")]
    self.assertIn(f"{min(secs):.0f} to {max(secs):.0f} s to restart", _TEXT)
    ms = [float(row["oobleck_reconfig_ms"]) for row in _read("oobleck_simulator_constants.csv")]
    said = f"{min(ms) / 1e3:.0f} to {max(ms) / 1e3:.0f} s to reconfigure"
    self.assertIn(said, _TEXT)
    claims = {(row["system"], row["metric"]): row["value"] for row in _read("headline_claims.csv")}
    share = float(claims["PCcheck", "overhead"])
    self.assertIn(f"{share:.0%}".replace("%", " %"), _TEXT)
