"""Compares a step after slow nodes gave layers away with the best split.

The best of all partitions of the slow node's pipeline, and of all numbers of
its shares, is found by brute force; all steps are planned and played.

python -m tests.slow_split --size=3x2 --num_layers=9 --factors=1.25,2,4
"""

from collections.abc import Sequence

from absl import app, flags

from tests.recovery import speeds_test

_SIZE = flags.DEFINE_string("size", "3x2", "Stages x pipelines.")
_NUM_LAYERS = flags.DEFINE_integer("num_layers", 9, "Equal layers.")
_NUM_SHARES = flags.DEFINE_integer("num_shares", 8, "Of 2 microbatches each.")
_FACTORS = flags.DEFINE_list("factors", ["1.25", "2", "4"], "Of the slow node.")


def main(argv: Sequence[str]) -> None:
  """Prints a line for each node of the first pipeline, and each factor."""
  del argv
  num_stages, num_pipelines = map(int, _SIZE.value.split("x"))
  rules, layout = speeds_test.make(
      num_stages, num_pipelines, _NUM_LAYERS.value, num_shares=_NUM_SHARES.value, mode="none"
  )
  ratios = []
  for node in range(num_stages):
    for factor in map(float, _FACTORS.value):
      slow = {node: factor}
      change = rules.improve(layout, layout.nodes, zones={}, slow=slow)
      best_ms = speeds_test.best_ms(rules, layout, slow)
      after_ms = speeds_test.step_ms(rules, change.layout, slow)
      ratios.append(best_ms / after_ms)
      print(
          f"node={node} factor={factor:g} "
          f"usual_ms={speeds_test.step_ms(rules, layout, {}):.1f} "
          f"slow_ms={speeds_test.step_ms(rules, layout, slow):.1f} "
          f"after_ms={after_ms:.1f} best_ms={best_ms:.1f} "
          f"ratio={ratios[-1]:.3f} {change.rung}",
          flush=True,
      )
  print(f"worst_ratio={min(ratios):.3f}")


if __name__ == "__main__":
  app.run(main)
