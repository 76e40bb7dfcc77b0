import importlib
import json
import os
import sys
import traceback

from absl.testing import parameterized

from bamboo_jax.base import functions
from tests import folders


def _model(module):
  return {"model": {"name": f"{module}:make"}}


class FunctionsTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    path, cwd = [*sys.path], os.getcwd()
    self.addCleanup(lambda: sys.path.__setitem__(slice(None), path))
    self.addCleanup(os.chdir, cwd)

  def _find(self, name):
    return functions.find_function(name, what="model")

  def test_file(self):
    path = self.folder / "mine.py"
    (self.folder / "beside_mine.py").write_text("ONE = 1\n")
    path.write_text("import beside_mine\ndef make():\n  return beside_mine.ONE\n")
    self.assertEqual(self._find(f"{path}:make")(), 1)
    self.assertIs(self._find(f"{path}:make"), self._find(f"{path}:make"))
    os.chdir(self.folder)
    self.assertIs(self._find("mine.py:make"), self._find(f"{path}:make"))

  @parameterized.named_parameters(
      ("none", {"data": {"name": "files"}, "at": "localhost:8080"}, []),
      ("model", _model("{}/a.py"), ["a.py"]),
      ("in_a_list", {"data": {"of": [{"name": "{}/a.py:f"}]}}, ["a.py"]),
      (
          "with_neighbours",
          {"optimizer": {"name": "{}/d.py:make", "schedule": "{}/a.py:f"}},
          ["a.py", "b.py", "d.py", "pkg/__init__.py", "pkg/c.py"],
      ),
      ("logger", {"metrics": {"logger": "{}/a.py:log"}}, []),
      ("missing", _model("{}/z.py"), []),
      ("not_python", _model("{}/bad.py"), ["bad.py"]),
      ("module", _model("b"), ["b.py", "d.py", "pkg/__init__.py", "pkg/c.py"], ""),
      ("in_a_package", _model("own.e"), ["own/__init__.py", "own/c.py", "own/e.py"], ""),
      ("package", _model("own"), ["own/__init__.py"], ""),
      ("plugins", {"plugins": ["a"]}, ["a.py"], ""),
      ("no_module", {"model": {"name": "no_such.e:f"}, "plugins": ["a.x", "own.z"]}, []),
      ("python", {"model": {"name": "sys:exit"}}, []),
  )
  def test_code_of_a_config(self, config, names, start=None):
    sys.path.insert(0, str(self.folder))
    importlib.invalidate_caches()
    (self.folder / "pkg").mkdir()
    (self.folder / "own").mkdir()
    for name, code in (
        ("own/__init__.py", ""),
        ("own/e.py", "from . import c\nfrom .c import e\nfrom .. import a\n"),
        ("own/c.py", "from .. import a\nfrom own import e\n"),
        ("a.py", "import math\n"),
        ("b.py", "def f():\n  from pkg import c\n"),
        ("d.py", "import b, absent\n"),
        ("pkg/__init__.py", ""),
        ("pkg/c.py", "import d\n"),
        ("bad.py", "def"),
    ):
      (self.folder / name).write_text(code)
    config = json.loads(json.dumps(config).replace("{}", str(self.folder)))
    found = functions.find_code(config)
    start = str(self.folder) + "/" if start is None else start
    self.assertEqual([*found], [start + name for name in names])
    for name in found:
      path = self.folder / name
      path.write_text(path.read_text() + "\n")
      now = functions.find_code(config)
      self.assertNotEqual(now[name], found[name])
    self.assertNotIn("own", sys.modules)

  def test_of_an_installed_module_only_its_file(self):
    found = functions.find_code({"model": {"name": "optax:adam"}, "plugins": ["json"]})
    self.assertEqual([*found], ["json/__init__.py", "optax/__init__.py"])

  def test_changed_file_is_read_again(self):
    path = self.folder / "mine.py"
    path.write_text("def make():\n  return 1\n")
    self.assertEqual(self._find(f"{path}:make")(), 1)
    path.write_text("def make():\n  return 22\n")
    os.utime(path, ns=(1, 1))
    self.assertEqual(self._find(f"{path}:make")(), 22)

  def test_module(self):
    self.assertIs(self._find("posixpath:join"), os.path.join)

  @parameterized.named_parameters(
      ("no_file", "absent.py:make", "model 'absent.py:make': no file 'absent"),
      ("no_module", "no_such:make", "No module named 'no_such'"),
      ("no_function", "mine.py:mak", "did you mean 'make'"),
      ("no_name", "mine.py:", "Unknown function of mine.py ''"),
      ("raises", "bad.py:make", "bad.py:2: ZeroDivisionError"),
      ("syntax", "worse.py:make", "SyntaxError"),
  )
  def test_refuses(self, name, message):
    (self.folder / "mine.py").write_text("def make():\n  return 1\n")
    (self.folder / "bad.py").write_text("one = 1\none / 0\n")
    (self.folder / "worse.py").write_text("def make(:\n")
    os.chdir(self.folder)
    with self.assertRaisesRegex(ValueError, message):
      self._find(name)

  def test_traceback_of_own_lines(self):
    path = self.folder / "mine.py"
    path.write_text("import json\n\ndef read(text):\n  return json.loads(text)\n")
    try:
      self._find(f"{path}:read")("{")
    except ValueError as raised:
      error, outer = raised, RuntimeError("x")
    self.assertEqual(functions.find_own_line(error), f"{path}:4")
    lines = functions.render_own_traceback(error).splitlines()
    self.assertNotIn("json/", "".join(lines))  # Of Python.
    self.assertIn(f'  File "{path}", line 4, in read', lines)
    outer.__cause__ = error
    self.assertEqual(functions.render_own_traceback(outer).splitlines(), lines)
    functions.drop_other_frames(outer)
    frames = traceback.extract_tb(error.__traceback__)
    self.assertEqual(frames[-1].filename, str(path))
    self.assertEqual(functions.render_own_traceback(KeyError("x")), "")
