"""Names in the pages on top and in docs/ are those of files and definitions."""

import configparser
import functools
import importlib
import pathlib
import re
from typing import Any

from absl.testing import parameterized

import bamboo_jax
from bamboo_jax import base
from bamboo_jax.base import packaged
from bamboo_jax.config import GONE
from bamboo_jax.configs import default
from bamboo_jax.configs.sim import compare
from bamboo_jax.launch import __main__
from tests import folders

_ROOT = folders.ROOT
_LIBRARY = _ROOT / "bamboo_jax"
_PACKAGES = ("benchmarks", "configs", "launch", "reproductions", "tests")
_PAGES = (
    *sorted(_ROOT.glob("*.md")),
    *sorted((_ROOT / "docs").rglob("*.md")),
    *sorted((_ROOT / "third_party").rglob("*.md")),
)
# What is set as code: between backticks, or a block.
_CODE = re.compile(r"^```.*?^```|`[^`]+`", re.DOTALL | re.MULTILINE)
_KINDS = "py|md|csv|sh|yaml|toml|cfg|txt|ipynb|service"
_BEFORE = r"(?<![\w./$*{}~@:-])"
_FILE = re.compile(rf"{_BEFORE}((?:[\w.-]+/)*[\w-][\w.-]*\.(?:{_KINDS}))(?![\w/*.]*\w)")
_FOLDER = re.compile(rf"{_BEFORE}([\w.-]+/[\w./-]*)(?![\w*<{{$])")
_MODULE = re.compile(r"`((?:bamboo_jax\.)?[a-z_]+(?:\.\w+)+)`")
_IMPORT = re.compile(r"^\s*from (bamboo_jax[\w.]*) import (\w+)", re.MULTILINE)
_RUN = re.compile(r" -m ((?:bamboo_jax|benchmarks|launch|tests)\.[\w.]+)")
_COMMAND = re.compile(r"(?:^|[`\s])(?:\S*/)?bamboo (\w[\w-]*)", re.MULTILINE)
_CONFIG = re.compile(r"--config=(\w[\w./-]*)")
# A command with what follows it in its line, and its flags.
_LINE = re.compile(r"(?:^|[`\s])(?:\S*/)?bamboo (\w[\w-]*)([^\n`|#;]*)", re.MULTILINE)
_FLAG = re.compile(r"(?<=\s)--([a-z]\w*)")
_OPTION = re.compile(r"--config\.([a-z][\w.]*)")
_GLOBAL_FLAGS = {"help", "print_config", "verbosity"}
_EXTRAS = re.compile(r"pip install[^\n]*\[([\w,]+)\]")
# Files of readers and of other repositories.
_OTHERS = {
    "file.py",
    "gru.py",
    "mine.py",
    "my_config.py",
    "new.csv",
    "p3.csv",
    "hosts.txt",
    "p3-trace.csv",
    "vms.csv",
    "predictivity-compute-budget.md",
    "file_secs.txt",
    "monday.csv",
    "small.csv",
    "trace.csv",
    "tuesday.csv",
}
# Folders of readers, and in workdirs.
_FOLDERS = {"wiki", "wiki_tokens"}
# First words of dotted names that are not modules of ours.
_FOREIGN = {
    "eqx",
    "jax",
    "jnp",
    "nnx",
    "optax",
    "torch",
    # Attributes of a reader's objects, and keys of reports.
    "block",
    "determinism",
    "kills",
    "layouts",
    "speed",
    "spmd",
}
_SUFFIXES = (*_KINDS.split("|"), "html", "json", "jsonl", "log", "png", "safetensors")
# Texts with one name of what does not exist.
_MISSING = r"""`plan/no_such_file.py`

`recovery.decide.no_such_name`

`recovery.no_such_module`

`config.pipeline.layuot`

`bamboo trian`

```
A=1 bamboo trian && bamboo train --help
```

`published/oobleck/ours.py`

`no_such_file.md`

`runtime/wires/`

`runtime/wire/` or `tests/no_such`

```
cd docs/deplay
```

`trace_generator.generate_trace`

`bamboo_jax.trian`

```
from bamboo_jax.models import layers
```

```
python -m bamboo_jax.launch.trian
```

`pip install '.[bpe,clusters]'`

`bamboo train --worker=3`

```
bamboo train --config=gpt2:xl \
  --workdirs=w  # --a
```

`bamboo train --config.pipeline.num_stage=2`

`bamboo simulate --config=sim/compare --config.study.trace.days=3`

`--config=quickstrat`"""
# A row of the map: question, file, definition.
_ROW = re.compile(r"^\|[^|]+\|\s*`([\w/.]+)`\s*\|\s*`([\w.]+)`", re.MULTILINE)


def find_missing(text: str) -> list[str]:
  """Returns the names in `text` of what does not exist.

  Names are those of files, folders, modules, what stands in modules, commands
  and configs. Words in capitals stand for others.
  """
  code = "\n".join(_CODE.findall(text))
  modules = _MODULE.findall(text) + _RUN.findall(code)
  modules += [".".join(names) for names in _IMPORT.findall(code)]
  commands = __main__.read_summaries()
  extras = ",".join(_EXTRAS.findall(code)).split(",")
  return [
      *(name for name in extras if name and name not in _extras()),
      *_find_wrong_flags(code.replace("\\\n", " ")),
      *(name for name in _FILE.findall(code) if not _is_file(name)),
      *(name for name in _FOLDER.findall(code) if not _is_folder(name)),
      *(n for n in modules if not (_is_defined(n) or _is_option(n) or f"config.{n}" in GONE)),
      *(n for n in _CONFIG.findall(code) if not _is_config(n)),
      *(
          f"bamboo {name}"
          for name in _COMMAND.findall(code)
          if name not in (*commands, "COMMAND", "NAME")
      ),
  ]


@functools.cache
def _paths() -> frozenset[str]:
  """Returns the paths of files, each also without its first folders."""
  tops = [p for p in _ROOT.iterdir() if p.name not in ("build", "runs")]
  files = [p for p in tops if p.is_file()]
  for top in tops:
    if top.is_dir() and not top.name.startswith("."):
      files += top.rglob("*")
  parts = [path.relative_to(_ROOT).parts for path in files]
  return frozenset("/".join(p[i:]) for p in parts for i in range(len(p)))


@functools.cache
def _sources() -> str:
  folders = (_LIBRARY, *(_ROOT / name for name in _PACKAGES[:-1]))
  return "".join(p.read_text() for f in folders for p in f.rglob("*.py"))


def _is_file(name: str) -> bool:
  """Whether a file is ours, or one that a command leaves, or a reader's."""
  path = re.sub(r"^(\.*/)+", "", name)
  last = path.rpartition("/")[2]
  return (
      path in _paths()
      or last in _OTHERS
      or bool(re.match("[A-Z]+[.]", last))  # FILE.py
      or f'"{last}"' in _sources()
  )


def _is_folder(name: str) -> bool:
  """Whether a path exists, or begins with no folder of the repository."""
  first, _, rest = name.partition("/")
  last = rest.rpartition("/")[2]
  is_ours = (_ROOT / first).is_dir() or (_LIBRARY / first).is_dir()
  if (
      not is_ours
      or name in packaged.list_configs()
      or first in ("build", "runs")
      or name == "bamboo_jax/programs"  # In the cache folder of the user.
      or first.startswith(".")
  ):
    # A package that is gone would be such a name, in lower case.
    return is_ours or rest or not first.islower() or first in _FOLDERS or f'"{first}' in _sources()
  return not rest or name.rstrip("/.") in _paths() or "." in last


@functools.cache
def _extras() -> frozenset[str]:
  parser = configparser.ConfigParser()
  parser.read(_ROOT / "setup.cfg")
  return frozenset(parser["options.extras_require"])


@functools.cache
def _flags() -> dict[str, set[str]]:
  """Returns the flags of each command, as the page of options has them."""
  page = (_ROOT / "docs/reference/options.md").read_text()
  sections = re.split(r"^### bamboo (\w+)$", page, flags=re.MULTILINE)[1:]
  found = {}
  for name, text in zip(sections[::2], sections[1::2], strict=True):
    flags = re.findall(r"^[*] `--(?:\[no\])?(\w+)`: ", text, re.MULTILINE)
    found[name] = {*flags, *_GLOBAL_FLAGS}
  return found


def _find_wrong_flags(code: str) -> list[str]:
  """Returns flags that their commands do not have, and options that configs do not have."""
  wrong = []
  for command, rest in _LINE.findall(code):
    flags = _flags().get(command)
    if flags is None:
      continue
    for flag in _FLAG.findall(rest):
      if not flags & {flag, flag.removeprefix("no")}:
        wrong.append(f"{command} --{flag}")
    config = _load(*re.findall(r"--config=([\w/]+):?([\w.,-]*)", rest)[:1])
    wrong += [name for name in _OPTION.findall(rest) if not _has(config, name)]
  return wrong


@functools.cache
def _load(given: tuple[str, str] = ("default", "")) -> Any:
  """Returns a packaged config; a reader's has the options of the default."""
  name, argument = given if given[0] in packaged.list_configs() else ("default", "")
  module = importlib.import_module(f"bamboo_jax.configs.{name.replace('/', '.')}")
  return module.get_config(*filter(None, [argument]))


def _is_config(name: str) -> bool:
  return name in packaged.list_configs() or name.isupper() or _is_file(name)


def _is_option(name: str) -> bool:
  """Whether a run or a simulation has an option of that name."""
  configs = (default.get_config(), compare.get_config())
  return any(_has(c, name.removeprefix("config.")) for c in configs)


def _has(value: Any, name: str) -> bool:
  for word in name.split("."):
    if word in base.OPTIONS:
      return True
    if not hasattr(value, "keys") or word not in value:
      return False
    value = value[word]
  return True


def _is_defined(name: str) -> bool:
  """Whether a dotted name is that of a module or of what stands in one."""
  words = name.removeprefix("bamboo_jax.").split(".")
  if words[-1] in _SUFFIXES or words[-1].isupper():
    return True  # A file, or a word that stands for others.
  place = _LIBRARY
  if words[0] in _PACKAGES:
    place, words = _ROOT / words[0], words[1:]
  elif not (_LIBRARY / words[0] / "__init__.py").exists():
    # A module without its package, as in code that has imported it.
    modules = _LIBRARY.rglob(f"{words[0]}.py")
    return words[0] in (*_FOREIGN, *bamboo_jax.__all__) or any(
        _defines(module, words[1:]) for module in modules
    )
  while words and (place / words[0]).is_dir():
    place, words = place / words[0], words[1:]
  if not words:
    return True
  module = place / f"{words[0]}.py"
  if not module.exists():
    return _defines(place / "__init__.py", words)
  return not words[1:] or _defines(module, words[1:])


def _defines(module: pathlib.Path, words: list[str]) -> bool:
  """Whether a module defines all `words`: a name, or a class and its attribute."""
  if not module.exists():
    return False
  text = module.read_text()
  binds = (
      r"(?m)^ *((async )?def|class) {0}\b|^ *(self\.|\w+, )?{0}(: [^\n]*[^:])?( =|$)"
      r"|import [^#]*?\b{0}\b"
  )
  return all(re.search(binds.format(word), text) for word in words)


class DocsTest(parameterized.TestCase):

  @parameterized.parameters(*_PAGES)
  def test_names_exist(self, page):
    self.assertEqual(find_missing(page.read_text()), [])

  def test_pages_named_elsewhere_exist(self):
    files = [*_ROOT.glob("docs/**/*.*"), *_ROOT.glob("launch/*")]
    for name in ("bamboo_jax", *_PACKAGES[:-1]):
      files += _ROOT.glob(f"{name}/**/*.py")
    missing = [
        f"{file}: {name}"
        for file in files
        if file.is_file() and file.suffix not in (".png", ".pyc")
        for name in re.findall(r"(?<!/)docs/\w[\w/]*\.\w+", file.read_text())
        if not (_ROOT / name).exists()
    ]
    self.assertEqual(missing, [])

  def test_map_names_the_deciding_code(self):
    rows = _ROW.findall((_ROOT / "docs/reference/map.md").read_text())
    self.assertGreaterEqual(len(rows), 12)
    for path, name in rows:
      with self.subTest(path):
        self.assertTrue(_defines(_ROOT / path, name.split(".")), msg=name)

  @parameterized.parameters(*_MISSING.split("\n\n"))
  def test_find_missing(self, text):
    """The pages have names of all kinds that exist."""
    self.assertLen(find_missing(text), 1)
