"""Flags that several commands have."""

from typing import Any

from absl import flags

from bamboo_jax.runtime.executables import program_folder as folder_lib
from bamboo_jax.train.record import workdir as workdir_lib

flags.disclaim_key_flags()  # A flag is one of the command that defines it.


def define_workdir(help_text: str = "Where checkpoints and metrics go.") -> flags.FlagHolder[Any]:
  """Defines the flag `--workdir`, which is needed."""
  return flags.DEFINE_string("workdir", None, help_text, required=True)


def explain_resume(workdir: flags.FlagHolder[Any]) -> str:
  """Returns the hint after an interrupt: how to resume the run."""
  saved = workdir_lib.find_saved(workdir.value) if flags.FLAGS.is_parsed() else 0
  if saved:
    return f"the same command goes on from step {saved}, which is saved"
  return "nothing is saved: the same command starts from the beginning"


def define_device_memory_fraction() -> flags.FlagHolder[Any]:
  """Defines the flag `--device_memory_fraction`."""
  return flags.DEFINE_float(
      "device_memory_fraction",
      None,
      "Part of the memory of a GPU that each worker takes; several may share " "it.",
  )


def define_program_cache(
    default: str = "bamboo_jax/programs in the cache folder of the user",
) -> flags.FlagHolder[Any]:
  """Defines where compiled programs are kept."""
  return flags.DEFINE_string(
      "program_cache",
      None,
      "Folder of compiled programs, which runs and processes share; by default "
      f"{default}. Empty: none.",
  )


def read_numbers(holder: flags.FlagHolder[Any]) -> list[int]:
  """Returns a list of numbers from 1; `ValueError` if it has anything else."""
  for text in holder.value:
    if not text.isdigit() or int(text) < 1:
      raise ValueError(f"--{holder.name} must be numbers from 1, got {text!r}.")
  return [int(text) for text in holder.value]


def find_program_cache(folder: str | None) -> str:
  """Returns the folder that the flag names, or the user's default one."""
  return folder_lib.default_path() if folder is None else folder


def use_program_cache(folder: str | None) -> Any:
  """Makes this process load and save programs in the folder of the flag.

  Returns the `runtime.executables.program_store.ProgramStore` of this process.
  """
  from bamboo_jax.runtime.executables import program_store  # Imports JAX.

  return program_store.use(find_program_cache(folder))
