"""Processes that answer, variants that take turns, ratios of pairs."""

import sys

from absl.testing import absltest

from bamboo_jax.benchmarks import table, turns

# Prints something else too, as libraries do, and ends when told to.
_ECHO = """
import sys
print("answer {}", flush=True)
for line in sys.stdin:
  if line == "end RANK\\n":
    sys.exit(3)
  print("noise")
  print(f'answer ["{line.strip()}", RANK]', flush=True)
"""


class ProcessesTest(absltest.TestCase):  # Each starts Python: 0.1 s.

  def commands(self):
    return [[sys.executable, "-S", "-c", _ECHO.replace("RANK", str(rank))] for rank in range(2)]

  def test_answers_by_rank_until_one_ends(self):
    with turns.Processes(self.commands()) as processes:
      self.assertEqual(processes.ask("a b"), [["a b", 0], ["a b", 1]])
      with self.assertRaisesRegex(OSError, "Stage 1 .* ended with code 3"):
        processes.ask("end 1")


class TurnsTest(absltest.TestCase):

  def test_each_once_a_round_in_many_orders(self):
    told = []
    variants = {name: lambda n=name: told.append(n) or {"k": len(told)} for name in "abc"}
    rows = turns.take_turns(variants, 10, begin=told.append, when_warm=lambda: told.append("warm"))
    self.assertEqual(list(rows), ["a", "b", "c"])
    self.assertEqual(told.index("warm"), 4 * turns.WARMUP)
    told.remove("warm")
    rounds = [told[i : i + 4] for i in range(0, len(told), 4)]
    self.assertEqual([r[0] for r in rounds], list(range(turns.WARMUP + 10)))
    for _, *order in rounds:
      self.assertCountEqual(order, "abc")
    self.assertGreater(len({tuple(order) for _, *order in rounds}), 2)
    for own in rows.values():
      self.assertLen(own, 10)
      self.assertGreater(own[0]["k"], 4 * turns.WARMUP)
      self.assertTrue(all(row["step_ms"] >= 0.0 for row in own))

  def test_step_of_two_processes(self):
    processes = turns.Processes([])
    processes.ask = lambda command: [
        {"vote_ms": 4.0, "compute_ms": 1.0, "refresh_bytes": 10},
        {"vote_ms": 1.0, "compute_ms": 2.0, "refresh_bytes": 20, "loss": 7.0},
    ]
    self.assertEqual(
        processes.run_step("rows/lazy"),
        {"vote_ms": 1.0, "compute_ms": 2.0, "refresh_bytes": 30, "loss": 7.0},
    )


class TableTest(absltest.TestCase):

  def test_ratio(self):
    found = table.paired_ratio([2.0, 6.0, 30.0], to=[1.0, 2.0, 10.0])
    self.assertEqual(found, table.Ratio(3.0, 2.0, 3.0, 3))
    self.assertEqual(str(found), "3.000 [2.000, 3.000]")
    with self.assertRaises(ValueError):  # Not a pair.
      table.paired_ratio([1.0], to=[1.0, 2.0])

  def test_a_pair_has_no_interval(self):
    found = table.paired_ratio([3.0], to=[2.0])
    self.assertEqual(found, table.Ratio(1.5, None, None, 1))
    self.assertEqual(str(found), "1.500")

  def test_render(self):
    rows = [{"mode": "lazy", "ms": 9.96}, {"mode": "none", "ms": 1.0}]
    text = table.render(rows, "mode={mode} step={ms:.1f}")
    self.assertEqual(text, "mode  step\nlazy  10.0\nnone   1.0")

  def test_medians(self):
    rows = [{"a": k, "b": float(k), "c": "x"} for k in (1, 2, 4, 5)]
    self.assertEqual(table.medians(rows), {"a": 2, "b": 3.0, "c": "x"})
