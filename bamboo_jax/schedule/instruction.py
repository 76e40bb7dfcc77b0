"""Instructions of a pipeline schedule.

A schedule is a table with one row of instructions per node. Instructions print
as stage, mnemonic and microbatch: `2F0` is the forward pass of microbatch 0 on
stage 2. A transfer also names the other node: `2SA0>3` sends the output of
stage 2 to node 3, and `2RA0<2` on node 3 receives it.

They are plain values: a schedule can be made, merged, checked and drawn without
a device. Buffers, links and programs belong to the executor.
"""

import enum
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.schedule import channel as channel_lib


class Op(enum.Enum):
  """What an instruction does; the values are the mnemonics in tables."""

  FORWARD = "F"
  BACKWARD = "B"
  REDUNDANT_FORWARD = "RF"  # On behalf of the node that owns the stage.
  SEND_ACTIVATION = "SA"
  RECV_ACTIVATION = "RA"
  SEND_GRAD = "SG"
  RECV_GRAD = "RG"

  # Members are singletons; the inherited hash is a Python call, and a schedule
  # looks up tens of thousands.
  __hash__ = object.__hash__


# The ends of a transfer, by its kind.
_ENDS = {
    "activations": (Op.SEND_ACTIVATION, Op.RECV_ACTIVATION),
    "gradients": (Op.SEND_GRAD, Op.RECV_GRAD),
}
_KINDS = {op: kind for kind, ends in _ENDS.items() for op in ends}
_SENDS, _RECEIVES = zip(*_ENDS.values(), strict=True)


Item = tuple[base.StageId, int]  # Stage, microbatch.


class Instruction(NamedTuple):
  """One operation on one microbatch of one stage.

  Attributes:
    stage: Stage whose parameters a pass uses. For a transfer, the stage whose
      output is sent, or to whose output the gradient belongs: the owner of
      stage 3 sends `2SG0` to the owner of stage 2.
    microbatch: Index in the global batch of the step.
    peer: The other node of a transfer; only transfers have one.
  """

  stage: base.StageId
  op: Op
  microbatch: int
  peer: base.NodeId | None = None

  @property
  def item(self) -> Item:
    """Stage and microbatch."""
    return self.stage, self.microbatch

  @property
  def is_send(self) -> bool:
    """Whether it is the sending end of a transfer."""
    return self.op in _SENDS

  @property
  def is_receive(self) -> bool:
    """Whether it is the receiving end of a transfer."""
    return self.op in _RECEIVES

  @property
  def is_transfer(self) -> bool:
    """Whether it needs a peer, unlike a pass."""
    return self.peer is not None

  def transfer(self, node: base.NodeId) -> "Transfer":
    """Returns the transfer that has this instruction of `node` as an end."""
    assert self.peer is not None, f"{self} is no transfer"
    ends = (node, self.peer) if self.is_send else (self.peer, node)
    return Transfer(_KINDS[self.op], self.stage, self.microbatch, *ends)

  def __str__(self) -> str:
    text = f"{self.stage}{self.op.value}{self.microbatch}"
    if self.is_transfer:
      text += f"{'>' if self.is_send else '<'}{self.peer}"
    return text


class Transfer(NamedTuple):
  """A send and its receive: an array that moves between two nodes.

  Attributes:
    kind: "activations": the output of `stage`; "gradients": the gradient with respect
      to it. See `holdings.Holdings`, and `channel.Channel`.
  """

  kind: str
  stage: base.StageId
  microbatch: int
  source: base.NodeId
  destination: base.NodeId

  @property
  def item(self) -> Item:
    """Stage and microbatch."""
    return self.stage, self.microbatch

  @property
  def channel(self) -> channel_lib.Channel:
    """The channel that delivers it, after all that was sent before."""
    return channel_lib.Channel(self.kind, (self.source, self.destination), (self.stage,))

  @property
  def send(self) -> Instruction:
    """Instruction in the row of `source`."""
    return Instruction(self.stage, _ENDS[self.kind][0], self.microbatch, self.destination)

  @property
  def receive(self) -> Instruction:
    """Instruction in the row of `destination`."""
    return Instruction(self.stage, _ENDS[self.kind][1], self.microbatch, self.source)


Row = tuple[Instruction, ...]
