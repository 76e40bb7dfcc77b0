"""Programs that a node runs for one stage, compiled ahead for its device.

They are local: no program contains a collective, so the death of a peer cannot
spoil them, and they stay valid when the nodes around them change. What crosses
from a forward to its backward pass is explicit (`spec.Saved`) and holds neither
parameters nor stage inputs, which are kept once, by the node.

XLA:CPU may run two programs of one device side by side. Every program of a row
therefore takes `after`, a token of the program before it in the row, and
returns a token, `done`. So a device runs its row in order, as one GPU stream
would, and the token tells when an instruction has finished.
"""

from collections.abc import Iterable

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime.stage import functions as functions_lib
from bamboo_jax.runtime.stage import spec as spec_lib

# By name: the function, and the positions of arguments that are donated.
_PROGRAMS = {
    "forward": ("forward", ()),
    "backward": ("backward", (5,)),
    "evaluate": ("evaluate", ()),
    "update": ("update", (0, 1)),
    "propose": ("update", ()),
    "norms": ("norms", ()),
    "zeros": ("zeros", ()),
    "token": ("token", ()),
}


class StagePrograms:
  """The programs of one stage, each compiled once, for one device.

  `programs["forward"]` compiles it if need be. Calls take positional arguments,
  return at once, and the arrays become ready later:

    forward(after, params, stats, inputs, batch, step, microbatch)
        -> (done, outputs, saved)
    backward(after, params, inputs, saved, grad, accumulator)
        -> (done, grad_inputs, accumulator); donates the accumulator
    evaluate(after, params, stats, inputs, batch) -> (done, outputs or loss)
    update(params, slots, total, scale, num_microbatches)
        -> state; donates params and slots
    propose: the same as update, but donates nothing
    norms(total) -> float32 [layers], squared norms of the gradients
    zeros() -> accumulator
    token() -> what the first program of a row takes as `after`

  `step` and `microbatch` are uint32 scalars, `scale` and `num_microbatches` are
  float32. `grad` is None for the last stage, `inputs` and `grad_inputs` are
  None for the first.

  Attributes:
    spec: What the programs depend on.
    device: Where they run.
  """

  def __init__(
      self, functions: functions_lib.StageFunctions, device: jax.Device
  ) -> None:
    self.spec = functions.spec
    self.device = device
    self._functions = functions
    self._traced = {}
    self._compiled = {}

  @property
  def saved(self) -> spec_lib.Saved:
    """Shapes of the values that a forward pass keeps."""
    return self._trace("forward").out_info[2]

  def __getitem__(self, name: str) -> jax.stages.Compiled:
    if name not in self._compiled:
      self._compiled[name] = self._trace(name).lower().compile()
    return self._compiled[name]

  def compile(self, names: Iterable[str]) -> None:
    """Compiles programs; takes seconds, and may run in any thread."""
    for name in names:
      self[name]

  def count(self, name: str) -> tuple[float, float]:
    """Returns XLA's operations, and the bytes of arguments and results."""
    traced = self._trace(name)
    counts = traced.lower().cost_analysis() or {}
    arrays = jax.tree.leaves((self._arguments(name), traced.out_info))
    num_bytes = sum(a.size * np.dtype(a.dtype).itemsize for a in arrays)
    return counts.get("flops", 0.0), float(num_bytes)

  def _trace(self, name: str) -> jax.stages.Traced:
    with self._functions.lock:
      if name not in self._traced:
        self._traced[name] = self._trace_anew(name)
      return self._traced[name]

  def _trace_anew(self, name: str) -> jax.stages.Traced:
    place = jax.sharding.SingleDeviceSharding(self.device)
    on_device = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place)
    function, donated = _PROGRAMS[name]
    program = jax.jit(
        getattr(self._functions, function),
        donate_argnums=donated,
        keep_unused=True,
        out_shardings=place,
    )
    return program.trace(*jax.tree.map(on_device, self._arguments(name)))

  def _arguments(self, name: str) -> tuple[base.PyTree, ...]:
    spec, scalar = self.spec, jax.ShapeDtypeStruct((), np.uint32)
    state, total = spec.state, spec.accumulator
    token = jax.eval_shape(functions_lib.make_token)
    batch = {k: spec.batch[k] for k in spec.batch_keys}
    passes = (token, state.params, state.stats, spec.inputs, batch)
    match name:
      case "forward":
        return passes + (scalar, scalar)
      case "backward":
        grad = spec.outputs
        return (token, state.params, spec.inputs, self.saved, grad, total)
      case "evaluate":
        return passes
      case "update" | "propose":
        scale = jax.ShapeDtypeStruct((), np.float32)
        return (state.params, state.slots, total, scale, scale)
      case "norms":
        return (total,)
      case _:
        return ()
