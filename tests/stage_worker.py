"""Runs all programs of a small stage, in a process of its own for tests.

Its arguments are a folder of executables and the number of the device. Says
what it has compiled and loaded, and the bits that came out.
"""

import hashlib
import itertools
import json
import sys

import jax
import numpy as np
import optax

from bamboo_jax.models import zoo
from bamboo_jax.runtime import devices as devices_lib, program_store as store_lib
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib


def make_spec():
  """Returns the last of two stages, which has inputs and a loss."""
  model = zoo.make_model("tests.mlp_bn:make_mlp_bn", num_blocks=1, width=8, vocab_size=16)
  last = len(model.layers)
  like = jax.ShapeDtypeStruct((2, 4), np.int32)
  return spec_lib.StageSpec(
      model=model,
      first=last - 2,
      last=last,
      batch={"inputs": like, "targets": like},
      optimizer=optax.adamw(1e-3),
      is_unit=True,
  )


def run_all(device):
  """Runs every program of the stage on a device, with random arguments.

  Returns:
    The hash of what each returned, by name, and how many arrays that were to be
    donated are still there.
  """
  programs = programs_lib.UnitPrograms(make_spec())
  hashes, num_kept = {}, 0
  for name in ("zeros", "forward", "evaluate", "backward", "norms", "propose", "update"):
    infos, _ = programs.compile(name, device).args_info
    rng = np.random.default_rng(0)
    fill = lambda a, rng=rng: (np.abs(rng.standard_normal(a.shape)) * 10).astype(a.dtype)
    args = jax.device_put(jax.tree.map(fill, infos), device)
    arrays = jax.tree.leaves(getattr(programs, name)(*args))
    assert all(a.devices() == {device} for a in arrays)
    parts = b"".join(np.asarray(a).tobytes() for a in arrays)
    hashes[name] = hashlib.sha256(parts).hexdigest()
    donated = [info.donated for info in jax.tree.leaves(infos)]
    assert any(donated) is (name in ("backward", "update")), name
    num_kept += sum(not a.is_deleted() for a in itertools.compress(jax.tree.leaves(args), donated))
  assert hashes["propose"] == hashes["update"]
  return hashes, num_kept


def main():
  """Does it, and says what happened."""
  devices_lib.use_virtual_devices(2)
  store = store_lib.use(sys.argv[1])
  hashes, num_kept = run_all(jax.devices()[int(sys.argv[2])])
  said = dict(hashes=hashes, kept=num_kept)
  print(json.dumps(said | dict(compiled=store.num_compiled, loaded=store.num_loaded)))


if __name__ == "__main__":
  main()
