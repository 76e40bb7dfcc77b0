"""Both executors with each mode of redundancy, in the process of one stage."""

from collections.abc import Callable
import pathlib
import time
from typing import Any

import jax
import numpy as np

from bamboo_jax.plan import profile_json
from bamboo_jax.runtime.spmd import engine as engine_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.train import build
from bamboo_jax.train import build_program
from launch.executors import predict
from launch.redundancy import engines
from launch.redundancy import modes


class Variants(modes.Modes):
  """The commands of the benchmark; see `modes.Modes` for those of rows."""

  @property
  def commands(self) -> dict[str, Callable[..., Any]]:
    """The commands by name."""
    return super().commands | {
        "build_executors": self.build_executors,
        "run": self.run,
        "difference": self.difference,
    }

  def build_executors(self, path: str, *names: str) -> dict[str, Any]:
    """Plans modes from the profile at `path` and compiles them.

    Returns:
      For rows and programs of each mode, seconds to compile, shared with no
      other one, and bytes.
    """
    profile = profile_json.from_json(pathlib.Path(path).read_text())
    cuts = build_program.find_cuts(self._config, self._task)
    plan = build.make_plan(self._config, profile, cuts=cuts)
    specs = self._specs(plan.partition.bounds)
    layers = spec_lib.init_layers(self._task.whole)
    self._programs: dict[str, engine_lib.SpmdEngine] = {}
    answer = {}
    for name in names:
      pair = predict.plan_pair(self._config, self._task, plan, modes=[name])
      start = time.perf_counter()
      self._modes |= engines.make_modes(
          pair.rows, specs, devices=self._devices, options=self._options
      )
      answer[f"rows/{name}"] = {
          "compile_secs": time.perf_counter() - start,
          "device_bytes": self._modes[name].replica_bytes()
          + pair.rows[name].whole.timeline.peak_bytes[self._rank],
          "host_bytes": 0,
          "padding_bytes": 0,
      }
      start = time.perf_counter()
      engine = engine_lib.SpmdEngine(
          self._task.whole,
          bounds=plan.partition.bounds,
          table=pair.programs[name].table,
          devices=np.array([[self._devices[s] for s in range(len(specs))]]),
          num_microbatches=plan.batch.num_microbatches,
          replicas=name != "none",
          refresh=self._options.refresh,
      )
      engine.compile()
      ledger = engine.ledger()
      answer[f"spmd/{name}"] = {
          "compile_secs": time.perf_counter() - start,
          "device_bytes": ledger.device,
          "host_bytes": ledger.host_residuals,
          "padding_bytes": ledger.padding[self._rank],
      }
      engine.set_state(layers)
      self._programs[name] = engine
    return answer

  def run(self, name: str) -> dict[str, Any]:
    """Runs a step as one program; returns its processor time and loss."""
    start = time.process_time()
    result = self._programs[name].step(
        self._step, lambda m, keys: {key: self._batch[m][key] for key in keys}
    )
    return {"cpu_secs": time.process_time() - start, "loss": result.loss}

  def difference(self) -> dict[str, Any]:
    """Returns how far parameters of this stage are from those of rows.

    That is the norm of the difference over the norm, the most of all modes.
    """
    others = {(0, s) for s in self._devices if s != self._rank}
    most = 0.0
    for name, engine in self._programs.items():
      own = self._modes[name].node.state[self._rank]
      found = engine.surviving_states(others)
      want = _flatten(own.params)
      got = _flatten({layer: found[layer].params for layer in own.params})
      norm = np.linalg.norm(got - want) / np.linalg.norm(want)
      most = max(most, float(norm))
    return {"difference": most}


def _flatten(tree: Any) -> np.ndarray:
  return np.concatenate([np.ravel(a) for a in jax.tree.leaves(tree)])
