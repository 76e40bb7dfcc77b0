"""The flag `--program_cache`: where compiled programs are kept between runs."""

from typing import Any

from absl import flags

flags.disclaim_key_flags()  # The flag is one of the command that defines it.


def define() -> flags.FlagHolder:
  """Defines the flag."""
  return flags.DEFINE_string(
      "program_cache",
      None,
      "Folder of compiled programs, which runs and processes of this machine "
      "share; by default bamboo_jax/programs in the cache folder of the user. "
      "Empty: none.",
  )


def use(folder: str | None) -> Any:
  """Lets this process find programs in the folder that the flag names.

  Returns the `runtime.executables.store.Store` of this process.
  """
  from bamboo_jax.runtime.executables import store  # Imports JAX.

  return store.use(store.default_folder() if folder is None else folder)
