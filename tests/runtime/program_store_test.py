"""A program is compiled once, whoever asks for it, and has the same bits; a folder harms no run."""

import contextlib
import functools
import itertools
import os
import subprocess
import sys
import threading
import types
from unittest import mock

from absl.testing import absltest, parameterized
import jax
from jax._src import compiler
import jax.numpy as jnp
import numpy as np
import optax

from bamboo_jax import base
from bamboo_jax.models import zoo
from bamboo_jax.runtime import compat, program_store as store_lib
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from tests import folders, limits, strangers

_DATA = bytes(range(256))
# Runs all programs of a stage on one of two devices, and says what it has compiled.
_PROCESS = """
import hashlib, sys, jax
from bamboo_jax.runtime import devices, program_store
from tests.runtime import program_store_test
devices.use_virtual_devices(2)
store = program_store.use(sys.argv[1])
bits = program_store_test.run_all(jax.devices()[int(sys.argv[2])])
sha256 = hashlib.sha256(repr(bits).encode()).hexdigest()
print(store.num_compiled, store.num_loaded, sha256)
"""


def make_stage():
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

  Returns the bits that each returned, by name; what was to be donated is gone.
  """
  programs, bits = programs_lib.UnitPrograms(make_stage()), {}
  for name in ("zeros", "forward", "evaluate", "backward", "norms", "propose", "update"):
    infos, _ = programs.compile(name, device).args_info
    rng = np.random.default_rng(0)
    fill = lambda a, rng=rng: (np.abs(rng.standard_normal(a.shape)) * 10).astype(a.dtype)
    args = jax.device_put(jax.tree.map(fill, infos), device)
    arrays = jax.tree.leaves(getattr(programs, name)(*args))
    assert all(a.devices() == {device} for a in arrays)
    bits[name] = [np.asarray(a).tobytes() for a in arrays]
    donated = [info.donated for info in jax.tree.leaves(infos)]
    assert any(donated) is (name in ("backward", "update")), name
    given = itertools.compress(jax.tree.leaves(args), donated)
    assert all(a.is_deleted() for a in given), name
  assert bits["propose"] == bits["update"]
  return bits


class StoreTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.addCleanup(store_lib.use)

  def use_store(self, folder=""):
    """Returns an empty store that is asked from now on."""
    store = store_lib.ProgramStore(str(folder))
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
    want = run_all(jax.devices()[0])
    for device in (5, 0):  # The first one again: another engine finds its programs, too.
      with self.compiling(store, 0):
        self.assertEqual(run_all(jax.devices()[device]), want)

  def test_a_program_over_two_devices(self):
    store = self.use_store()
    values = np.arange(6, dtype=np.float32)
    spec = jax.sharding.PartitionSpec("end")
    for ends, num_compiled in (((0, 1), 1), ((4, 2), 0)):
      mesh = jax.sharding.Mesh([jax.devices()[end] for end in ends], "end")
      placed = jax.device_put(values, jax.sharding.NamedSharding(mesh, spec))
      add = lambda x: jax.lax.psum(x, "end")
      program = jax.jit(jax.shard_map(add, mesh=mesh, in_specs=spec, out_specs=spec))
      with self.compiling(store, num_compiled):
        compiled = program.lower(placed).compile()
      np.testing.assert_array_equal(compiled(placed)[:3], values[:3] + values[3:])

  def test_two_processes(self):
    """They want the same at the same time, for different devices."""
    theirs, ours = self.folder / "jax", self.folder / "programs"
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(theirs)}
    start = functools.partial(subprocess.Popen, env=env, stdout=subprocess.PIPE, text=True)
    command = [sys.executable, "-c", _PROCESS, str(ours)]
    processes = [start([*command, device]) for device in "01"]
    said = [process.communicate()[0].split() for process in processes]
    compiled, loaded = (sum(int(one[i]) for one in said) for i in (0, 1))
    self.assertLen([*ours.glob("*.xla")], compiled)
    self.assertGreater(loaded, 0)
    self.assertEqual(*(sha256 for *_, sha256 in said))
    self.assertEmpty([*theirs.glob("*")])

  def test_a_process_with_other_threads_compiles_again(self):
    for threads, num_compiled in (("16", 1), ("32", 1), ("16", 0)):
      store = self.use_store(self.folder)
      with mock.patch.dict(os.environ, NPROC=threads), self.compiling(store, num_compiled):
        _lower(first=num_compiled).compile()

  def test_entry_that_is_no_program(self):
    junk = b"no program of any XLA"
    store = self.use_store(self.folder)
    _lower().compile()
    (entry,) = self.folder.glob("*.xla")
    entry.write_bytes(store_lib._seal(entry.stem, junk))
    store = self.use_store(self.folder)
    with self.assertLogs(level="WARNING"), self.compiling(store, 1):
      _lower().compile()
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
      answer = functools.partial(np.float32, number)
      call_back = lambda answer=answer: jax.pure_callback(answer, jnp.float32(0))
      self.assertEqual(jax.jit(call_back).lower().compile()(), number)
    self.assertEqual(store.num_loaded, 0)

  def test_folder_has_choices_of_kernels_on_gpus(self):
    before = jax.config.jax_compilation_cache_dir
    self.addCleanup(jax.config.update, "jax_compilation_cache_dir", before)
    self.addCleanup(store_lib.use().use_folder, str(store_lib.use().folder or ""))

    def find_options():
      options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
      found = options.executable_build_options.debug_options
      return found.xla_gpu_per_fusion_autotune_cache_dir

    folder = str(self.folder)
    store_lib.use(folder)
    self.assertStartsWith(find_options(), f"{folder}/")
    self.folder.chmod(0o777)
    with self.assertLogs(level="WARNING"):
      store_lib.use(folder)
    self.assertEmpty(find_options())

  def test_same_and_different_programs(self):
    store = self.use_store()
    _lower().compile()
    with self.compiling(store, 0):
      _lower(first=3).compile()
      _lower(lambda a, b: (a @ b, jnp.sin(b))).compile()  # Other names and lines.
    # JAX leaves devices to us, and of the rest it makes a key.
    for changes in (dict(function=lambda x, y: x @ y), dict(devices=2), dict(devices=2, cut="d")):
      with self.compiling(store, 1):
        _lower(**changes).compile()

  def test_mappings_run_out(self):
    self.use_store()
    _lower().compile()
    self.enterContext(mock.patch.object(store_lib, "_PROC", self.folder))
    self.assertEqual(store_lib.count_mappings(), 0)  # Another system.
    store_lib.check_mappings()
    most, maps = self.folder / "sys/vm/max_map_count", self.folder / "self/maps"
    for file in (most, maps):
      file.parent.mkdir(parents=True)
    most.write_text("100\n")
    maps.write_text("7fac-7fad r-xp 00000000\n" * 91)
    with self.assertRaisesRegex(base.CompilationError, "91 mappings of memory of the 100"):
      _lower(first=1).compile()
    maps.write_text("7fac-7fad r-xp 00000000\n" * 90)
    _lower(first=2).compile()


def give_away(path):
  if os.geteuid():
    raise absltest.SkipTest("needs root")
  os.chown(path, strangers.NOBODY, strangers.NOBODY)


class FolderTest(folders.FolderCase):
  """Any harm to the folder costs time, and no run."""

  def setUp(self):
    super().setUp()
    self.path = self.folder / "a" / "b"

  def make(self, **options):
    return store_lib.ProgramStore(str(self.path), **options)

  def entry(self, key):
    return self.path / f"{self.make()._find_name(key)}.xla"

  def put(self, *keys, data=_DATA, store=None):
    for key in keys:
      program = types.SimpleNamespace(serialize=lambda: data)
      (store or self.make()).save(key, program)

  def find(self, key, **options):
    """Returns what a store finds that has nothing in memory."""
    return self.make(**options).load(key, bytes)

  def ask(self):
    """Starts a thread that asks for "a"; returns it, and what it finds."""
    found, asks = [], threading.Event()
    target = lambda: (asks.set(), found.append(self.find("a", wait_secs=1e6)))
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    asks.wait()
    return thread, found

  def test_another_process_reads(self):
    self.put("a")
    with self.assertNoLogs():
      self.assertEqual(self.find("a"), _DATA)
      self.assertIsNone(self.find("b"))
    self.assertEqual(self.path.stat().st_mode & 0o777, 0o700)

  def test_another_place_has_it(self):
    self.put("a")
    entry = self.entry("a")
    content = {entry.name: entry.read_bytes(), self.entry("b").name: b"bad"}
    entry.unlink()
    asked = []
    for _ in range(2):
      store = self.make()
      store.fetch = lambda file: asked.append(file) or content.get(file)
      self.assertEqual(store.load("a", bytes), _DATA)
      self.assertEqual(store.used, {entry.name})
    with self.assertLogs(level="WARNING"):
      self.assertIsNone(store.load("b", bytes))
    self.assertEqual(asked, [*content])

  @parameterized.named_parameters(
      ("truncated", lambda e: os.truncate(e, e.stat().st_size - 1), "not what was written"),
      ("one_bit", lambda e: e.write_bytes(e.read_bytes()[:-1] + b"\0"), "not what was written"),
      ("of_another_key", lambda e: e.write_bytes(store_lib._seal("b", _DATA)), "not what was"),
      # Others have put their folder in its place, with files that they can write.
      ("of_a_group", lambda e: e.chmod(0o664), "others may write to it"),
      ("of_all", lambda e: e.chmod(0o646), "others may write to it"),
      ("of_another_user", give_away, "it belongs to another user"),
  )
  def test_harm_is_a_miss(self, harm, message):
    self.put("a", "b")
    store = self.make()
    with self.assertLogs(level="WARNING") as logs:
      for key in "ab":
        harm(self.entry(key))
        self.assertIsNone(store.load(key, bytes))
    (line,) = logs.output
    self.assertRegex(line, f"{self.entry('a').name}, {message}")
    self.put("a")
    self.assertEqual(self.find("a"), _DATA)

  @parameterized.named_parameters(
      ("all_may_write", lambda p: p.mkdir(mode=0o700) or p.chmod(0o777), "others may write to it"),
      ("a_group", lambda p: p.mkdir(mode=0o700) or p.chmod(0o770), "it; chmod go-w"),
      ("another_user", lambda p: p.mkdir() or give_away(p), "another user"),
      ("no_folder", lambda p: p.touch(), "(File exists|Not a directory).*--program_cache"),
  )
  def test_folder_is_not_used(self, make, message):
    self.path.parent.mkdir()
    make(self.path)
    with self.assertLogs(level="WARNING") as logs:
      store = self.make()
      self.put("b", store=store)
    self.assertIsNone(store.folder)
    self.assertIsNone(store.load("a", bytes))
    (line,) = logs.output
    self.assertRegex(line, message)
    self.assertEmpty([*self.path.glob("*")])

  def test_full(self):
    store = self.make()
    self.put("a", data=b"old", store=store)
    with self.assertLogs(level="WARNING") as logs, limits.file_size(16):
      self.put("a", "b", store=store)
    self.assertLen(logs.output, 1)
    self.assertEqual(self.find("a"), b"old")
    self.assertEqual([*self.path.glob("*[!k]")], [self.entry("a")])

  def test_what_is_deleted(self):
    """The least recently used, and parts of writers that died."""
    for age, key in enumerate("cde"):
      self.put(key)
      os.utime(self.entry(key), (age, age))
    for name in ("old.part", "new.part"):
      (self.path / name).touch()
    os.utime(self.path / "old.part", (1, 1))
    self.find("c")
    store = self.make(limit_bytes=1000)
    self.put("f", store=store)  # 1240 bytes in all.
    left = {*self.path.glob("*[!k]")}
    self.assertEqual(left, {*map(self.entry, "cef"), self.path / "new.part"})
    self.put("g", data=bytes(1001), store=store)
    self.assertIsNone(self.find("g"))

  def test_one_compiles_and_others_wait_for_its_entry(self):
    store = self.make(wait_secs=1e6)
    self.assertIsNone(store.load("a", bytes))
    asking, found = self.ask()
    asking.join(0.1)  # It ends by then only without the lock.
    self.assertEmpty(found)
    self.put("a", store=store)
    asking.join(60.0)
    self.assertEqual(found, [_DATA])

  def test_a_claim_ends(self):
    store = self.make(wait_secs=1e6)
    self.put("b", store=store)
    self.assertIsNone(store.load("a", bytes))
    store.load("b", bytes)  # It could not compile the other one.
    asking, found = self.ask()
    asking.join(60.0)
    self.assertEqual(found, [None])
    # The thread that has the claim now has ended with nothing: it may be stopped.
    self.assertIsNone(self.find("a", wait_secs=0))


def _lower(function=lambda x, y: (x @ y, jnp.sin(y)), *, devices=1, first=0, cut=None):
  """Returns a lowered program, by default always the same one."""
  mesh = jax.make_mesh((devices,), ("d",), devices=jax.devices()[first : first + devices])
  place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(cut))
  like = jax.ShapeDtypeStruct((4, 4), np.float32, sharding=place)
  return jax.jit(function, out_shardings=place).lower(like, like)
