"""Links: how an array gets from one node to another.

A link carries values of one shape in one direction, in order. Where both ends
are devices of one process, an array is copied from device to device. Otherwise
the transfer is a collective over a mesh of two devices, so that the death of a
node breaks only the links that end there; a received array is then waited for
before any program may take it, so that a failure surfaces at the receive.

A mesh joins devices of the CPU backend. A node that computes elsewhere, as on a
GPU, copies what it sends to the device of its transfers, beside its programs,
and what it receives back: so nothing of a dead peer hangs on an accelerator.
"""

import collections
from collections.abc import Callable
import functools
import math
from typing import Any
import weakref

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import compat
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.spmd.processes import transfer_log
from bamboo_jax.runtime.wire import mesh as mesh_lib
from bamboo_jax.schedule import channel as channel_lib

KINDS = ("auto", "copy", "host", "ppermute")

# What a node puts in where it receives, by device, shape and dtype. It is as
# large as the value, and a node may receive the same kind from many others.
_fillers: weakref.WeakValueDictionary[Any, jax.Array] = (
    weakref.WeakValueDictionary()
)


class LocalLink:
  """A link between two devices of this process, or from a device to itself.

  Nothing blocks: the copy starts when the value is ready. It cannot fail, so
  nobody waits for it either.

  Attributes:
    values: Those that were sent and not received.
  """

  def __init__(self, to: base.PyTree) -> None:
    """Makes a link to a device, or to shardings as a value has leaves."""
    self._to = to
    self.values = collections.deque()

  def send(self, value: base.PyTree) -> None:
    """Sends `value`, arrays on the source; they are read, not donated."""
    # Either end may be told to delete its arrays.
    self.values.append(jax.device_put(value, self._to, may_alias=False))

  def receive(self) -> base.PyTree:
    """Returns the next value, arrays on the destination."""
    return self.values.popleft()

  def drop(self) -> None:
    """Drops values that were not received."""
    self.values.clear()


class PairLink:
  """A link as a `ppermute` over the mesh of its two devices.

  The devices may belong to two processes, each of which issues its half, or to
  one, which then issues both with `send`. Either half blocks the device until
  the other has come, so all nodes must issue transfers in one global order.

  A collective costs by the array, so a value of many arrays travels as one
  buffer per dtype.

       source                        destination
    1. | log.begin                   | log.begin     raises if it is stopped
    2. | copy off the accelerator; pack
    3. |========= ppermute =========>|               each waits for the other
    4.                               | block; log.check: is it meant still?
    5.                               | unpack; copy to the accelerator

  If one end dies in 3, the other gets an error, or its connection is cut; if
  one end is stopped before 1, it is told to `answer`.

  Attributes:
    values: Those that were sent and not received, if both ends are here.
  """

  def __init__(
      self,
      source: jax.Device,
      destination: jax.Device,
      *,
      like: base.PyTree,
      to: base.PyTree,
      channel: channel_lib.Channel,
      log: transfer_log.TransferLog,
  ) -> None:
    """Compiles the program; the ends meet when they first use it."""
    self._channel = channel
    self._log = log
    if source == destination:
      raise ValueError(f"A mesh needs two devices, got {source} twice.")
    self._pack = self._unpack = None
    arrays = jax.tree.leaves(like)
    if len(arrays) != 1 or not arrays[0].shape:
      packed = jax.eval_shape(_pack, like)
      if devices_lib.is_local(source):
        self._pack = _compile(_pack, like, source)
      if devices_lib.is_local(destination):
        kinds = tuple((a.shape, a.dtype) for a in arrays)
        self._unpack = _compile(
            _unpack,
            packed,
            destination,
            kinds=kinds,
            structure=jax.tree.structure(like),
        )
      like = packed
    self._sharding = mesh_lib.make_sharding([source, destination], "end")
    self._source, self._destination = source, destination
    self.values = collections.deque()
    self._like = like
    both = mesh_lib.widen(like, self._sharding)
    self._program = compat.compile_apart(_shift.lower(both))
    self._is_local = source.process_index == destination.process_index
    self._to = to
    self._filler = None
    if devices_lib.is_local(destination):
      self._filler = self._zeros(destination)

  def send(self, value: base.PyTree) -> None:
    """Does as `LocalLink.send`."""
    self._begin()
    value = jax.device_put(value, self._source)
    if self._pack is not None:
      value = self._pack(value)
    out = self._run(value, self._filler if self._is_local else None)
    if self._is_local:
      self.values.append(self._received(out))

  def receive(self) -> base.PyTree:
    """Does as `LocalLink.receive`, but blocks until the value has arrived."""
    if self._is_local:
      return self._deliver(self.values.popleft())
    self._begin()
    value = self._deliver(self._received(self._run(None, self._filler)))
    self._log.check()  # Once stopped, nobody may have meant the value.
    return value

  def drop(self) -> None:
    """Does as `LocalLink.drop`."""
    self.values.clear()

  def answer(self) -> None:
    """Ends a transfer that the other process has begun; blocks."""
    self._log.answer(self._channel)
    is_source = devices_lib.is_local(self._source)
    nothing = self._zeros(self._source) if is_source else None
    jax.block_until_ready(self._run(nothing, self._filler))

  def _begin(self) -> None:
    if not self._is_local:
      self._log.begin(self._channel)

  def _zeros(self, device: jax.Device) -> base.PyTree:
    return jax.tree.map(lambda a: _find_filler(a, device), self._like)

  def _run(self, payload: base.PyTree, filler: base.PyTree) -> base.PyTree:
    halves = [half for half in (payload, filler) if half is not None]
    whole = mesh_lib.join(halves, self._sharding)
    if self._is_local:
      return self._program(whole)
    return self._log.run(self._channel, lambda: self._program(whole))

  def _received(self, out: base.PyTree) -> base.PyTree:
    value = mesh_lib.part_on(self._destination, out)
    return value if self._unpack is None else self._unpack(value)

  def _deliver(self, value: base.PyTree) -> base.PyTree:
    return jax.device_put(jax.block_until_ready(value), self._to)


# One direction between two nodes; each sends and receives the same number.
Link = LocalLink | PairLink


def make_link(
    source: jax.Device,
    destination: jax.Device,
    *,
    like: base.PyTree,
    kind: str,
    to: base.PyTree = None,
    channel: channel_lib.Channel | None = None,
    log: transfer_log.TransferLog | None = None,
) -> Link:
  """Returns a link for values shaped as `like`.

  Args:
    source: Joined by transfers of the node that sends; see
      `devices.compute_of` for where it computes.
    kind: One of `KINDS`; see `docs/engine.md`.
    to: Shardings of what is received; None: where the destination computes.
  """
  if kind not in KINDS:
    raise ValueError(base.suggest(kind, KINDS, what="link kind"))
  compute = devices_lib.compute_of(source) or devices_lib.compute_of(
      destination
  )
  if kind == "ppermute" and compute.platform != "cpu":
    raise ValueError(
        "link='ppermute' joins the devices that compute, which must be CPUs, "
        f"got {compute.platform!r}; use 'host' or 'auto'."
    )
  to = devices_lib.compute_of(destination) if to is None else to
  is_local = source.process_index == destination.process_index
  if source == destination or (kind in ("auto", "copy") and is_local):
    return LocalLink(to)
  if kind == "copy":
    raise ValueError(
        f"A copy needs both ends in one process, got {source} and "
        f"{destination}."
    )
  return PairLink(
      source,
      destination,
      like=like,
      to=to,
      channel=channel or channel_lib.Channel("link", ()),
      log=log or transfer_log.TransferLog(),
  )


# For any devices: JAX traces and lowers a program of one shape once.
@jax.jit
def _pack(tree: base.PyTree) -> dict[str, jax.Array]:
  """Returns the arrays of `tree`, one after the other, by dtype."""
  groups = {}
  for leaf in jax.tree.leaves(tree):
    groups.setdefault(str(leaf.dtype), []).append(leaf.ravel())
  return {name: jnp.concatenate(parts) for name, parts in groups.items()}


@functools.partial(jax.jit, static_argnames=("kinds", "structure"))
def _unpack(
    buffers: dict[str, jax.Array],
    *,
    kinds: tuple[tuple[tuple[int, ...], np.dtype], ...],
    structure: jax.tree_util.PyTreeDef,
) -> base.PyTree:
  """Returns the packed tree; `kinds` are shapes and dtypes of its leaves."""
  starts = dict.fromkeys(buffers, 0)
  parts = []
  for shape, dtype in kinds:
    name = str(dtype)
    start, starts[name] = starts[name], starts[name] + math.prod(shape)
    parts.append(buffers[name][start : starts[name]].reshape(shape))
  return structure.unflatten(parts)


def _find_filler(like: jax.ShapeDtypeStruct, device: jax.Device) -> jax.Array:
  """Returns zeros, the same for all links."""
  key = (device, like.shape, like.dtype)
  if (found := _fillers.get(key)) is None:
    found = jax.device_put(np.zeros(like.shape, like.dtype), device)
    _fillers[key] = found
  return found


_shift = mesh_lib.over_any(
    lambda value: jax.lax.ppermute(value, "end", [(0, 1)]), 2, "end"
)


def _compile(
    program: jax.stages.Wrapped,
    like: base.PyTree,
    device: jax.Device,
    **static: Any,
) -> Callable[[base.PyTree], base.PyTree]:
  """Compiles a program of one value for a device."""
  place = jax.sharding.SingleDeviceSharding(device)
  shaped = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place)
  shapes = jax.tree.map(shaped, like)
  return compat.compile_apart(program.lower(shapes, **static))
