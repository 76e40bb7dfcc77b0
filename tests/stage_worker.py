"""Runs all programs of a small stage, in a process of its own for tests.

Its arguments are a folder of executables and the number of the device. Says
what it has compiled and loaded, and the bits that came out.
"""

import hashlib
import json
import sys

import jax
import numpy as np
import optax

from bamboo_jax.models import zoo
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.executables import program_store as store_lib
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
  """Runs every program of the stage on a device.

  Returns:
    The hash of what each returned, by name, and how many arrays that were to be
    donated are still there.
  """
  spec = make_spec()
  programs = programs_lib.UnitPrograms(spec)
  hashes = {}

  def call(name, *args):
    placed = jax.device_put(args, device)
    result = getattr(programs, name)(*placed)
    arrays = jax.tree.leaves(result)
    assert all(a.devices() == {device} for a in arrays)
    parts = b"".join(np.asarray(a).tobytes() for a in arrays)
    hashes[name] = hashlib.sha256(parts).hexdigest()
    return result, placed

  rng = np.random.default_rng(0)
  fill = lambda a: (rng.standard_normal(a.shape) * 10).astype(a.dtype) % 16
  state = spec_lib.merge_layers(spec_lib.init_layers(spec))
  state = jax.device_get(spec_lib.to_unit(state, spec))
  batch = jax.tree.map(fill, {k: spec.batch[k] for k in spec.batch_keys})
  inputs, number = jax.tree.map(fill, spec.inputs), np.uint32(3)
  passes = (state.params, state.stats, inputs, batch)
  token = np.zeros((1,), np.int8)
  zeros, _ = call("zeros", token)
  zeros = jax.device_get(zeros)
  (_, _, saved), _ = call("forward", token, *passes, number, number, number)
  call("evaluate", token, *passes)
  (_, _, total), given = call("backward", token, state.params, inputs, saved, None, zeros)
  kept = [a for a in jax.tree.leaves(given[5]) if not a.is_deleted()]
  total, one = jax.device_get(total), np.float32(1)
  call("norms", total)
  arguments = (state.params, state.slots, total, one, one)
  _, given = call("propose", *arguments)
  assert not any(a.is_deleted() for a in jax.tree.leaves(given))
  _, given = call("update", *arguments)
  kept += [a for a in jax.tree.leaves(given[:2]) if not a.is_deleted()]
  assert hashes["propose"] == hashes["update"]
  return hashes, len(kept)


def main():
  """Does it, and says what happened."""
  devices_lib.use_virtual_devices(2)
  store = store_lib.use(sys.argv[1])
  hashes, num_kept = run_all(jax.devices()[int(sys.argv[2])])
  said = {
      "hashes": hashes,
      "kept": num_kept,
      "compiled": store.num_compiled,
      "loaded": store.num_loaded,
  }
  print(json.dumps(said))


if __name__ == "__main__":
  main()
