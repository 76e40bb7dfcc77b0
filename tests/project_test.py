"""The project's files agree with each other."""

import configparser
import os
import re
import shutil
import subprocess

from absl.testing import parameterized
from packaging import requirements, utils
import yaml

import bamboo_jax
from tests import folders, mutate

_ROOT = folders.ROOT
_PROJECT = ("setup.cfg", "setup.py", "pyproject.toml")
# These extras are for other hardware, or for a comparison: not pinned.
_UNPINNED_EXTRAS = ("cuda12", "cuda13", "rivals")


def _pins() -> dict[str, requirements.Requirement]:
  pins = {}
  kinds = ("", "-peers", "-gpu_compile", "-skypilot")
  files = [f"requirements{kind}.txt" for kind in kinds]
  for line in "\n".join((_ROOT / f).read_text() for f in files).splitlines():
    if line and not line.startswith("#"):
      pin = requirements.Requirement(line)
      pins[utils.canonicalize_name(pin.name)] = pin
  return pins


class ProjectTest(folders.FolderCase):

  def copy_project(self, *names, python, content):
    """Copies files and those that set up, and writes what stands for a Python."""
    for name in ("launch/_setup", *_PROJECT, *names, python):
      (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
      if name != python:
        shutil.copy(_ROOT / name, self.folder / name)
    log = f'[ "$1" = -c ] || echo "$@" >>{self.folder}/log'
    path = self.folder / python
    path.write_text(f"#!/bin/sh\n{content}{log}\n")
    path.chmod(0o755)

  def test_tests_near_a_file(self):
    found = mutate.find_near([f"{_ROOT}/bamboo_jax/schedule/dealing.py"])
    self.assertIn("tests/schedule/failover_test.py", found)
    self.assertLess(len(found), 100)
    with self.assertRaisesRegex(SystemExit, "no_such.py is no Python file"):
      mutate.find_near([f"{_ROOT}/bamboo_jax/no_such.py"])

  def test_changelog_begins_with_this_version(self):
    text = (_ROOT / "CHANGELOG.md").read_text()
    version = re.search(r"^## (\S+)", text, flags=re.MULTILINE)[1]
    self.assertEqual(version, bamboo_jax.__version__)

  def test_hooks_have_the_pinned_tools(self):
    hooks = yaml.safe_load((_ROOT / ".pre-commit-config.yaml").read_text())
    pins = {str(pin) for pin in _pins().values()}
    for hook in hooks["repos"][0]["hooks"]:
      self.assertContainsSubset(hook["additional_dependencies"], pins)

  def test_image_has_what_setup_needs(self):
    text = (_ROOT / "docs/deploy/Dockerfile").read_text()
    copied = {
        name.rstrip("/")
        for line in re.findall(r"^COPY (.*) \S+$", text, flags=re.MULTILINE)
        for name in line.split()
    }
    self.assertContainsSubset({"bamboo_jax", *_PROJECT}, copied)
    for name in copied:
      self.assertTrue((_ROOT / name).exists(), msg=name)
    within = re.findall(r'": "(\w+)', (_ROOT / "setup.py").read_text())
    self.assertContainsSubset(within, copied)
    setup = configparser.ConfigParser()
    setup.read(_ROOT / "setup.cfg")
    files = [text, *(p.read_text() for p in _ROOT.glob("docs/deploy/sky*"))]
    for extras in re.findall(r"'\.\[(.*?)\]'", "".join(files)):
      for extra in extras.split(","):
        self.assertIn(extra, setup["options.extras_require"])
    pins = re.findall(r"--constraint (\S+)", text)
    self.assertContainsSubset(pins, copied)
    script = setup["options.entry_points"]["console_scripts"].split()[0]
    entries = re.findall(r"^ENTRYPOINT (.*)$", text, flags=re.MULTILINE)
    stages = re.findall(r"^FROM base AS (\w+)$", text, flags=re.MULTILINE)
    self.assertEqual(entries, [f'["{script}"]'] * len(stages))
    self.assertCountEqual(re.findall(r"--target (\w+)", text), stages)
    for stage, command in re.findall(r"bamboo_jax:(\w+) (\w+) --", text):
      self.assertIn(stage, stages)
      self.assertTrue((_ROOT / f"launch/{command}.py").exists(), msg=command)

  def test_every_pin_is_exact(self):
    for name, pin in _pins().items():
      self.assertEqual([s.operator for s in pin.specifier], ["=="], msg=name)

  def test_pins_are_in_the_ranges_of_setup_cfg(self):
    setup = configparser.ConfigParser()
    setup.read(_ROOT / "setup.cfg")
    wanted = setup["options"]["install_requires"].split("\n")
    for extra, lines in setup["options.extras_require"].items():
      if extra not in _UNPINNED_EXTRAS:
        wanted += lines.split("\n")
    wanted = [requirements.Requirement(w) for w in wanted if w]
    self.assertGreater(len(wanted), 10)
    pins = _pins()
    for want in wanted:
      (pin,) = pins[utils.canonicalize_name(want.name)].specifier
      self.assertTrue(want.specifier.contains(pin.version), msg=str(want))

  @parameterized.parameters("launch/test", "launch/quickstart", ".ci/run")
  def test_command_is_executable(self, name):
    path = _ROOT / name
    self.assertTrue(os.access(path, os.X_OK))
    subprocess.run(["bash", "-n", path], check=True)

  def test_setup_installs_once(self):
    """Peers too, which only launch/test asks for."""
    root = self.folder
    pins = ("requirements.txt", "requirements-peers.txt")
    self.copy_project(*pins, python=".venv/bin/python", content="")

    def installs(command):
      (root / "log").write_text("")
      script = f"{command}source launch/_setup"
      subprocess.run(["bash", "-c", script], cwd=root, check=True)
      log = (root / "log").read_text()
      return [name for name in pins if f"--requirement {name}" in log]

    with_peers = "more_requirements=requirements-peers.txt; "
    self.assertIn(with_peers[:-2], (_ROOT / "launch/test").read_text())
    self.assertEqual(installs(""), ["requirements.txt"])
    self.assertEqual(installs(with_peers), [*pins])
    for command in ("", with_peers, ""):
      self.assertEqual(installs(command), [])
    (root / pins[1]).write_text("torch==3\n")
    self.assertEqual(installs(""), [])
    self.assertEqual(installs(with_peers), [*pins])

  def test_plugin_is_of_the_version_of_jax(self):
    pins = _pins()
    for name in ("jax-cuda12-pjrt", "jax-cuda12-plugin"):
      self.assertEqual(pins[name].specifier, pins["jax"].specifier)

  def test_another_python_gets_the_newest_jax(self):
    root = self.folder
    install = '[ "$2" != venv ] || { mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; }\n'
    self.copy_project("requirements.txt", python="python3.99", content=install)
    script = "wanted_python=$0; source launch/_setup; echo $venv"
    run = lambda name: subprocess.run(
        ["bash", "-c", script, str(root / name)], cwd=root, capture_output=True, text=True
    )
    self.assertEqual(run("python3.99").stdout, ".venv-python3.99\n")
    pins = (root / ".venv-python3.99/requirements.txt").read_text()
    jax = [line for line in pins.splitlines() if line.startswith("jax")]
    self.assertEqual(jax, ["jax==0.11.2", "jaxlib==0.11.2"])
    self.assertFalse((root / ".venv").exists())
    self.assertIn("python3.98 is no Python", run("python3.98").stderr)

  def test_published_tables_are_listed_with_their_source(self):
    folder = _ROOT / "third_party" / "published"
    readme = (folder / "README.md").read_text()
    listed = re.findall(r"^\| `([^`]+)`.*\| .+ \|$", readme, flags=re.MULTILINE)
    files = {p.name for p in folder.iterdir()}
    others = {"README.md", *re.findall(r"LICENSE\.\w+", readme)}
    found = {f.name for n in listed for f in folder.glob(n)}
    self.assertEqual(found | others, files)
