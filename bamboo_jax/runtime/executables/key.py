"""Keys of executables: equal keys mean the same machine code.

JAX's fingerprint covers the program, the options and the kind of device.
XLA:CPU also compiles for the host's exact processor, and splits loops by the
number of threads of this process.
"""

import hashlib
import os
import pathlib
import platform

import jax

_FORMAT = 1  # Version of the entries' format.
# Of /proc/cpuinfo; the latter three on ARM.
_CPU_FIELDS = (
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "flags",
    "CPU implementer",
    "CPU part",
    "Features",
)


def make_key(fingerprint: str, *, host: str) -> str:
  """Returns the key, which is a valid file name."""
  parts = (str(_FORMAT), jax.__version__, host, fingerprint)
  return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def describe_processor() -> str:
  """Returns a description of the processor, several lines."""
  try:
    cpu = parse_cpu(pathlib.Path("/proc/cpuinfo").read_text())
  except OSError:  # Not Linux.
    cpu = platform.processor()
  return f"{platform.machine()}\n{cpu}"


def count_threads() -> int:
  """Returns the number of threads of XLA:CPU in this process.

  It is `NPROC` or the number of cores, but at least the number of devices.
  """
  if hasattr(os, "sched_getaffinity"):
    num_cores = len(os.sched_getaffinity(0))
  else:
    num_cores = os.cpu_count() or 1
  num_cores = int(os.environ.get("NPROC", num_cores))
  return max(num_cores, jax.config.jax_num_cpu_devices)


def describe_host() -> str:
  """Returns all that machine code of this process for a CPU depends on."""
  return f"{describe_processor()}\n{count_threads()}"


def parse_cpu(text: str) -> str:
  """Returns the kind of processor from the text of /proc/cpuinfo."""
  first, _, _ = text.strip().partition("\n\n")
  lines = (line.partition(":") for line in first.splitlines())
  found = {name.strip(): value.strip() for name, _, value in lines}
  return "\n".join(f"{f}: {found[f]}" for f in _CPU_FIELDS if f in found)
