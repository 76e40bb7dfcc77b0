"""The checks of a GPU, as far as they can be told without one."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import optax

from bamboo_jax.models import zoo
from bamboo_jax.runtime.profile import flops
from bamboo_jax.runtime.profile import mfu
from bamboo_jax.runtime.profile import program_times
from bamboo_jax.runtime.stage import spec as spec_lib
from launch import gpu_check
from launch.checks import child
from launch.checks import determinism
from launch.checks import finding as finding_lib
from launch.checks import memory
from launch.checks import offload
from launch.checks import programs
from launch.checks import settings as settings_lib
from launch.checks import subject
from launch.checks import suite

_ROOT = pathlib.Path(__file__).resolve().parents[2]
Finding = finding_lib.Finding


def make_rate(**changes):
  fields = dict(
      unit="stage 0",
      program="forward",
      ms=2.0,
      alone_ms=2.5,
      compile_secs=1.0,
      model_flops=4 * 10**11,
      moved_bytes=10**9,
      temp_bytes=2**20,
  )
  return mfu.ProgramRate(**(fields | changes))


class FlopsTest(parameterized.TestCase):

  def test_of_gpt2(self):
    s, l, d, h, v = 3, 16, 32, 4, 50
    model = zoo.make_model(
        "gpt2",
        variant="tiny",
        num_blocks=2,
        width=d,
        num_heads=h,
        sequence_length=l,
        vocab_size=v,
    )
    batch = {
        key: jax.ShapeDtypeStruct((s, l), jnp.int32)
        for key in ("inputs", "targets")
    }
    whole = spec_lib.StageSpec(
        model=model,
        first=0,
        last=len(model.layers),
        batch=batch,
        optimizer=optax.sgd(0.1),
    )
    attention = 2 * s * l * 4 * d * d + 2 * 2 * s * l * l * d
    mlp = 2 * s * l * 8 * d * d
    self.assertEqual(
        flops.layer_flops(whole),
        {
            "embed": 0,
            "block_00.attention": attention,
            "block_00.mlp": mlp,
            "block_01.attention": attention,
            "block_01.mlp": mlp,
            "head": 2 * s * l * d * v,
        },
    )

  @parameterized.named_parameters(
      (
          "batched",
          lambda a: jnp.einsum("bij,bkj->bik", a, a),
          2 * 4 * 6 * 6 * 5,
      ),
      (
          "scan",
          lambda a: jax.lax.scan(lambda c, x: (c, x @ c.T), a[0], a),
          4 * 2 * 6 * 5 * 6,
      ),
      ("remat", jax.checkpoint(lambda a: a[0] @ a[1].T), 2 * 6 * 5 * 6),
      (
          "cond",
          lambda a: jax.lax.cond(
              a[0, 0, 0] > 0, lambda: a[0] @ a[1].T, lambda: jnp.zeros((6, 6))
          ),
          2 * 6 * 5 * 6,
      ),
      (
          "conv",
          lambda a: jax.lax.conv(
              a[None], jnp.ones((7, 4, 3, 3)), (1, 1), "VALID"
          ),
          2 * 7 * 4 * 3 * 4 * 9,
      ),
      ("elementwise", lambda a: jnp.tanh(a) * a, 0),
  )
  def test_of(self, function, want):
    shape = jax.ShapeDtypeStruct((4, 6, 5), jnp.float32)
    self.assertEqual(flops.count_products(function, shape), want)

  def test_unknown_number_of_products(self):
    def loop(a):
      return jax.lax.while_loop(lambda a: a[0, 0] > 0, lambda a: a @ a, a)

    with self.assertRaisesRegex(ValueError, "unknown length"):
      flops.count_products(loop, jax.ShapeDtypeStruct((2, 2), jnp.float32))


class MfuTest(parameterized.TestCase):

  def test_rates(self):
    rate = make_rate()
    self.assertAlmostEqual(rate.tflops, 200.0)
    self.assertAlmostEqual(rate.mfu(800.0), 0.25)
    self.assertAlmostEqual(rate.gigabytes_per_sec, 500.0)

  @parameterized.parameters(
      ("NVIDIA H100 80GB HBM3", 989.5),
      ("NVIDIA H100 PCIe", 756.5),
      ("NVIDIA H200", 989.5),
      ("NVIDIA GH200 480GB", 989.5),
      ("NVIDIA A100-SXM4-40GB", 312.0),
      ("NVIDIA L4", 121.0),
      ("NVIDIA L40S", 362.0),
      ("NVIDIA A10G", None),
      ("cpu", None),
  )
  def test_peak(self, kind, want):
    self.assertEqual(mfu.find_peak_tflops(kind, dtype="bfloat16"), want)
    self.assertIsNone(mfu.find_peak_tflops(kind, dtype="float32"))

  def test_table(self):
    rates = [make_rate(), make_rate(program="update", model_flops=0)]
    known = finding_lib.align(
        mfu.table_rows(rates, peak_tflops=800.0), left={0, 1}
    )
    self.assertEqual(
        known,
        [
            "unit     program  compile s     ms  alone ms  GFLOP  TFLOP/s"
            "  MFU %  GB/s  temp MiB",
            "stage 0  forward        1.0  2.000     2.500    400    200.0"
            "   25.0   500         1",
            "stage 0  update         1.0  2.000     2.500      -        -"
            "      -   500         1",
        ],
    )
    unknown = mfu.table_rows(rates, peak_tflops=None)
    self.assertEqual([row[7] for row in unknown], ["MFU %", "-", "-"])

  def test_time_must_be_positive(self):
    with self.assertRaisesRegex(ValueError, "ms must be positive"):
      make_rate(ms=0.0)


class ProgramsTest(absltest.TestCase):

  def test_split_by_time(self):
    split = lambda times: programs.split_by_time(
        "abcd", times, num_stages=2
    ).bounds
    self.assertEqual(split({i: (1.0, 2.0) for i in range(4)}), (0, 2, 4))
    self.assertEqual(
        split({0: (9, 9)} | {i: (1, 2) for i in (1, 2, 3)}), (0, 1, 4)
    )
    self.assertEqual(split({0: (9, 9)}), (0, 2, 4))  # The others failed.

  def test_add_up(self):
    total = programs.add_up([make_rate(), make_rate(ms=6.0, temp_bytes=5)])
    self.assertEqual((total.ms, total.temp_bytes), (8.0, 2**20))
    self.assertAlmostEqual(total.tflops, 100.0)

  def test_one_layer(self):  # Compiles three programs: about a second.
    whole = subject.make_whole(settings_lib.SMOKE)
    rates = program_times.time_stage(
        dataclasses.replace(whole, first=2, last=3),
        unit="mlp",
        batch=subject.make_microbatch(settings_lib.SMOKE, 0),
        device=jax.devices()[0],
        num_repeats=1,
    )
    self.assertEqual(
        [rate.program for rate in rates], ["forward", "backward", "update"]
    )
    forward, backward, update = rates
    self.assertEqual(backward.model_flops, 2 * forward.model_flops)
    self.assertEqual(update.model_flops, 0)


class MemoryTest(parameterized.TestCase):

  def test_of_live_arrays(self):
    def read_stats():
      return {"bytes_in_use": sum(a.nbytes for a in jax.live_arrays())}

    size = 1 << 20
    moments = memory.watch(jax.devices()[0], read_stats, num_bytes=size)
    self.assertEqual(memory.find_problems(**moments, num_bytes=size), [])

  @parameterized.named_parameters(
      ("good", {}, None),
      ("rounded", {"held": (1040, 1040)}, None),
      ("hidden", {"held": (0, 0)}, "shows as 0"),
      ("not_donated", {"donated": (2000, 2000)}, "after donation 2000"),
      ("copied", {"donated": (1000, 2000)}, "copied: the peak grew by 1000"),
      ("leaked", {"freed": (1000, 1000)}, "still in use"),
  )
  def test_problems(self, changes, want):
    moments = dict(
        before=(0, 0), held=(1000, 1000), donated=(1000, 1000), freed=(0, 1000)
    )
    stats = {
        moment: {"bytes_in_use": in_use, "peak_bytes_in_use": peak}
        for moment, (in_use, peak) in (moments | changes).items()
    }
    problems = memory.find_problems(**stats, num_bytes=1000)
    if want is None:
      self.assertEmpty(problems)
    else:
      self.assertRegex(problems[0], want)


class OffloadTest(parameterized.TestCase):

  @parameterized.parameters(
      (4.0, 2.0, 6.0, 0.0),
      (4.0, 2.0, 5.0, 0.5),
      (4.0, 2.0, 4.0, 1.0),
      (4.0, 2.0, 3.0, 1.0),
      (4.0, 2.0, 9.0, 0.0),
  )
  def test_overlap_share(self, compute_ms, copy_ms, both_ms, want):
    share = offload.overlap_share(
        compute_ms=compute_ms, copy_ms=copy_ms, both_ms=both_ms
    )
    self.assertEqual(share, want)

  def test_on_this_device(self):
    found = offload.run(settings_lib.SMOKE)
    self.assertEqual(found.problems, [])
    self.assertLen(found.lines, 5)


class DeterminismTest(parameterized.TestCase):

  @parameterized.parameters(
      ("aaa", "aaa", True, True),
      ("aaa", "bbb", True, False),
      ("aab", "aaa", False, True),
  )
  def test_compare(self, first, second, in_process, across):
    values = [
        {"digests": list(d), "forward_ms": 1.0, "backward_ms": 2.0}
        for d in (first, second)
    ]
    self.assertEqual(
        determinism.compare(values),
        determinism.Outcome(in_process, across, 1.0, 2.0),
    )

  def test_flags_exist(self):  # JAX reads them when a process starts it.
    with tempfile.TemporaryDirectory() as folder:
      modes = determinism.make_modes(pathlib.Path(folder))
    flags = {
        f for pair in modes.values() for line in pair for f in line.split()
    }
    problem = child.run_command(
        [sys.executable, "-c", "import jax; jax.devices()"],
        env=os.environ
        | {"XLA_FLAGS": " ".join(sorted(flags)), "JAX_PLATFORMS": "cpu"},
        timeout_secs=60.0,
    )
    self.assertIsNone(problem)


class ChildTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("fine", "print('hello')", None),
      (
          "raises",
          "raise ValueError('no such thing')",
          "code 1: .*no such thing",
      ),
      ("killed", "import os; os.kill(os.getpid(), 9)", "exit code -9"),
      ("stuck", "import signal; signal.pause()", "not finished after 0 s"),
  )
  def test_run_command(self, code, want):
    timeout_secs = 0.2 if "pause" in code else 60.0
    problem = child.run_command(
        [sys.executable, "-S", "-c", code],
        env=dict(os.environ),
        timeout_secs=timeout_secs,
    )
    if want is None:
      self.assertIsNone(problem)
    else:
      self.assertRegex(problem, want)

  def test_what_a_check_raises_is_its_finding(self):
    with tempfile.TemporaryDirectory() as folder:
      answer = pathlib.Path(folder) / "finding.json"
      child.main("no_such_check", settings_lib.SMOKE.to_json(), str(answer))
      found = Finding.from_json(answer.read_text())
    self.assertRegex(found.problems[0], "ModuleNotFoundError.*no_such_check")


class SuiteTest(parameterized.TestCase):

  def run_checks(self, findings):
    lines = []
    found = suite.run_checks(
        list(findings), findings.get, show=lines.append, clock=lambda: 0.0
    )
    return found, lines

  def test_a_failure_does_not_stop_the_others(self):
    findings = {
        "memory": Finding(problems=["it leaks"]),
        "offload": Finding(lines=["fast"]),
    }
    found, lines = self.run_checks(findings)
    self.assertEqual(found, findings)
    self.assertEqual(
        lines,
        [
            *("== memory", "FAILED memory: it leaks"),
            *("== offload", "  fast", "ok offload (0 s)"),
        ],
    )

  def test_nothing_runs_without_the_device(self):
    findings = {
        "device": Finding(problems=["none"]),
        "memory": Finding(),
    }
    self.assertEqual(list(self.run_checks(findings)[0]), ["device"])

  def test_json(self):
    found = {"memory": Finding(values={"a": 1}, problems=["bad"])}
    read = json.loads(suite.to_json(settings_lib.SMOKE, found))
    self.assertEqual(
        read["checks"]["memory"],
        {"ok": False, "problems": ["bad"], "values": {"a": 1}},
    )
    self.assertEqual(read["settings"]["variant"], "tiny")


class CommandTest(parameterized.TestCase):

  def test_options(self):
    args = gpu_check.parse_args(
        ["--smoke", "--only=offload,memory", "--microbatch_size=7"]
    )
    self.assertEqual(args.names, ["device", "memory", "offload"])
    self.assertEqual(
        args.settings,
        dataclasses.replace(settings_lib.SMOKE, microbatch_size=7),
    )

  @parameterized.parameters(
      ("--only=ofload", "did you mean 'offload'"),
      ("--num_stages=0", "num_stages must be at least 1, got 0"),
      ("--peak_tflops=-1", "peak_tflops must be > 0"),
  )
  def test_bad_option(self, option, message):
    with self.assertRaisesRegex(ValueError, message):
      gpu_check.parse_args([option])

  def test_every_option_is_a_setting(self):
    names = {f.name for f in dataclasses.fields(settings_lib.Settings)}
    self.assertLessEqual(set(gpu_check._OPTIONS), names)

  def test_wrapper(self):
    path = _ROOT / "launch" / "gpu_check"
    self.assertTrue(os.access(path, os.X_OK))
    subprocess.run(["bash", "-n", path], check=True)


if __name__ == "__main__":
  absltest.main()
