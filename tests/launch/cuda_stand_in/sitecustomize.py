"""Gives every process of Python a backend "cuda" that is made of CPUs.

On PYTHONPATH it is imported as Python starts. Each time JAX makes the backend,
a line of JSON says what the factory would have told CUDA.
"""

import json
import os
import sys

from jax._src import distributed, hardware_utils, xla_bridge
from jax._src.lib import xla_client

hardware_utils._NVIDIA_GPU_DEVICES = [__file__]  # It exists.


def make_client():
  """Records what CUDA would be given; returns a client of two devices."""
  state = distributed.global_state
  given = {
      "has_client": state.client is not None,
      "process": state.process_id,
      "num_processes": state.num_processes,
      "before": sorted(xla_bridge._backends),
      "flags": os.environ.get("XLA_FLAGS", ""),
      "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
      "fraction": os.environ.get("XLA_CLIENT_MEM_FRACTION"),
      "command": sys.argv[0],
  }
  path = os.path.join(os.environ["RECORDS"], f"{os.getpid()}.json")
  with open(path, "a", encoding="utf-8") as file:
    file.write(json.dumps(given) + "\n")
  return xla_client.make_cpu_client(num_devices=2)


xla_bridge.register_backend_factory("cuda", make_client, priority=500, fail_quietly=False)
