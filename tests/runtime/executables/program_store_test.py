"""A program is compiled once, whoever asks for it, and has the same bits."""

import contextlib
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized
import jax
from jax._src import compiler
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.executables import program_folder as folder_lib, program_store as store_lib
from tests import stage_worker

_VALUE = np.arange(5, dtype=np.float32)
_ROOT = pathlib.Path(__file__).resolve().parents[3]


def _make_program(device, function=lambda x: x * 3 + 1):
  place = jax.sharding.SingleDeviceSharding(device)
  like = jax.ShapeDtypeStruct((5,), np.float32, sharding=place)
  return jax.jit(function, out_shardings=place).lower(like).compile()


class StoreTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.enter_context(tempfile.TemporaryDirectory())
    self.devices = jax.devices()
    self.addCleanup(store_lib.use)

  def use_store(self, folder=None):
    """Returns an empty store that is asked from now on."""
    store = store_lib.ProgramStore(folder)
    compat.use_cache(store.load, store.save)
    jax.clear_caches()
    return store

  @contextlib.contextmanager
  def compiling(self, store, num_compiled):
    before = store.num_compiled, store.num_loaded
    yield
    self.assertEqual(store.num_compiled - before[0], num_compiled)
    if not num_compiled:
      self.assertGreater(store.num_loaded, before[1])

  def test_stage_on_another_device(self):
    store = self.use_store()
    first, num_kept = stage_worker.run_all(self.devices[0])
    self.assertEqual(num_kept, 0)
    with self.compiling(store, 0):
      second, num_kept = stage_worker.run_all(self.devices[5])
    self.assertEqual(first, second)
    self.assertEqual(num_kept, 0)
    with self.compiling(store, 0):  # Of an engine that is built anew.
      third, _ = stage_worker.run_all(self.devices[0])
    self.assertEqual(first, third)

  def test_a_program_over_two_devices(self):
    store = self.use_store()
    values = np.arange(6, dtype=np.float32)
    for ends, num_compiled in (((0, 1), 1), ((4, 2), 0)):
      mesh = jax.sharding.Mesh([self.devices[end] for end in ends], "end")
      spec = jax.sharding.PartitionSpec("end")
      placed = jax.device_put(values, jax.sharding.NamedSharding(mesh, spec))
      program = jax.jit(
          jax.shard_map(
              lambda x: jax.lax.psum(x, "end"),
              mesh=mesh,
              in_specs=spec,
              out_specs=jax.sharding.PartitionSpec(),
          )
      )
      with self.compiling(store, num_compiled):
        compiled = program.lower(placed).compile()
      np.testing.assert_array_equal(compiled(placed), values[:3] + values[3:])

  def test_two_processes(self):
    """They want the same at the same time, for different devices."""
    theirs = os.path.join(self.folder, "jax")
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": theirs}
    ours = os.path.join(self.folder, "programs")
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.stage_worker", ours, str(device)],
            cwd=_ROOT,
            env=env,
            stdout=subprocess.PIPE,
        )
        for device in (0, 1)
    ]
    one, two = (json.loads(process.communicate()[0]) for process in processes)
    entries = [name for name in os.listdir(ours) if name.endswith(".xla")]
    self.assertEqual(one["compiled"] + two["compiled"], len(entries))
    self.assertGreater(one["loaded"] + two["loaded"], 0)
    self.assertEqual(one["hashes"], two["hashes"])
    self.assertEqual((one["kept"], two["kept"]), (0, 0))
    self.assertFalse(os.path.exists(theirs) and os.listdir(theirs))

  def test_a_process_with_other_threads_compiles_again(self):
    folder, results = folder_lib.ProgramFolder(self.folder), []
    for threads, num_compiled in (("16", 1), ("32", 1), ("16", 0)):
      store = self.use_store(folder)
      with mock.patch.dict(os.environ, NPROC=threads), self.compiling(store, num_compiled):
        results.append(_make_program(self.devices[len(results)])(_VALUE))
    for result in results:
      np.testing.assert_array_equal(result, 3 * _VALUE + 1)

  def test_entry_that_is_no_program(self):
    folder = folder_lib.ProgramFolder(self.folder)
    self.use_store(folder)
    _make_program(self.devices[0])
    (entry,) = pathlib.Path(self.folder).glob("*.xla")
    junk = b"no program of any XLA"
    folder.put(entry.stem, junk)
    store = self.use_store(folder)
    with self.assertLogs(level="WARNING"), self.compiling(store, 1):
      _make_program(self.devices[0])
    self.assertNotIn(junk, entry.read_bytes())

  def test_failed_compilation(self):
    store = self.use_store()
    options = {"xla_no_such_option": True}
    for _ in range(2):  # Nobody waits for the first one.
      with self.assertRaisesRegex(Exception, "xla_no_such_option"):
        jax.jit(lambda x: x + 1).lower(1.0).compile(options)
    self.assertEqual((store.num_compiled, store.num_loaded), (0, 0))

  def test_callbacks_stay_in_their_process(self):
    store = self.use_store()
    for number in (1, 2):
      call_back = functools.partial(
          jax.pure_callback,
          functools.partial(np.float32, number),
          jax.ShapeDtypeStruct((), np.float32),
      )
      got = jax.jit(call_back).lower().compile()()
      self.assertEqual(got, number)
    self.assertEqual(store.num_loaded, 0)

  def test_folder_has_choices_of_kernels_on_gpus(self):
    before = jax.config.jax_compilation_cache_dir
    self.addCleanup(jax.config.update, "jax_compilation_cache_dir", before)
    self.addCleanup(setattr, store_lib.use(), "folder", store_lib.use().folder)

    def find_options():
      options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
      found = options.executable_build_options.debug_options
      return found.xla_gpu_per_fusion_autotune_cache_dir

    store_lib.use(self.folder)
    self.assertTrue(find_options().startswith(f"{self.folder}/"))
    os.chmod(self.folder, 0o777)
    with self.assertLogs(level="WARNING"):
      store_lib.use(self.folder)
    self.assertEmpty(find_options())

  @parameterized.parameters(
      dict(first=3),
      dict(function=lambda a, b: (a @ b, jnp.sin(b))),  # Other names and lines.
      dict(first=5, devices=2, sharded=True, like=dict(devices=2, sharded=True)),
  )
  def test_same_program(self, like=None, **changes):
    store = self.use_store()
    _lower(**(like or {})).compile()
    with self.compiling(store, 0):
      _lower(**changes).compile()

  def test_different_programs(self):
    store = self.use_store()
    variants = (
        {},
        {"function": lambda x, y: (x @ y, jnp.cos(y))},
        {"shape": (8, 8)},
        {"dtype": np.int32},
        {"donated": (1,)},
        {"memory_kind": "pinned_host"},
        {"devices": 2},
        {"devices": 2, "sharded": True},
    )
    for changes in variants:
      _lower(**changes).compile()
    _lower().compile({"xla_cpu_enable_fast_math": True})
    self.assertEqual(store.num_compiled, len(variants) + 1)

  def test_mappings_run_out(self):
    proc = pathlib.Path(self.folder)
    self.use_store()
    _lower().compile()
    with mock.patch.object(store_lib, "_PROC", proc):
      self.assertEqual(store_lib.count_mappings(), 0)  # Another system.
      store_lib.check_mappings()
      (proc / "sys/vm").mkdir(parents=True)
      (proc / "sys/vm/max_map_count").write_text("100\n")
      (proc / "self").mkdir()
      (proc / "self/maps").write_text("7fac-7fad r-xp 00000000\n" * 91)
      with self.assertRaisesRegex(base.CompilationError, "91 mappings of memory of the 100"):
        _lower(first=1).compile()
      (proc / "self/maps").write_text("7fac-7fad r-xp 00000000\n" * 90)
      _lower(first=2).compile()


def _lower(
    function=lambda x, y: (x @ y, jnp.sin(y)),
    *,
    devices=1,
    first=0,
    shape=(4, 4),
    dtype=np.float32,
    donated=(),
    memory_kind="device",
    sharded=False,
):
  """Returns a lowered program, by default always the same one."""
  mesh = jax.make_mesh((devices,), ("d",), devices=jax.devices()[first : first + devices])
  spec = jax.sharding.PartitionSpec("d" if sharded else None)
  place = jax.sharding.NamedSharding(mesh, spec)
  like = jax.ShapeDtypeStruct(shape, dtype, sharding=place)
  program = jax.jit(
      function, donate_argnums=donated, out_shardings=place.with_memory_kind(memory_kind)
  )
  return program.lower(like, like)


if __name__ == "__main__":
  absltest.main()
