"""Caches estimates, in memory and beside the executables.

An estimate takes seconds, because all passes of all kinds of layers are
lowered. Its key holds the sources of this package, so a change of these
invalidates it.
"""

from collections.abc import Callable
import functools
import hashlib
import pathlib

from bamboo_jax.plan import cost_model
from bamboo_jax.runtime.executables import key as key_lib, program_store

_of_process: dict[str, cost_model.Profile] = {}


def get(
    subject: str, make: Callable[[], cost_model.Profile], *, on_disk: bool
) -> cost_model.Profile:
  """Returns the estimate of `subject`; calls `make` on a miss.

  `subject` is everything that the estimate depends on apart from this package.
  With `on_disk` other processes may use it; not so for models outside the
  package, whose code may change.
  """
  key = key_lib.make_key(f"estimate {subject}", host=digest_package())
  if key not in _of_process:
    folder = program_store.use().folder if on_disk else None
    _of_process[key] = make() if folder is None else _share(folder, key, make)
  return _of_process[key]


def _share(
    folder: program_store.folder_lib.ProgramFolder, key: str, make: Callable[[], cost_model.Profile]
) -> cost_model.Profile:
  with folder.claim(key):
    text = folder.read(key)
    if text is not None:
      return cost_model.from_json(text.decode(), source="kept estimate")
    profile = make()
    folder.write(key, cost_model.to_json(profile).encode())
    return profile


@functools.cache
def digest_package() -> str:
  """Returns a digest of the sources of this package."""
  digest = hashlib.sha256()
  root = pathlib.Path(__file__).parents[2]  # The package.
  for path in sorted(root.rglob("*.py")):
    digest.update(path.read_bytes())
  return digest.hexdigest()
