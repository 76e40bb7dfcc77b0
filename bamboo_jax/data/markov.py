"""Samples of a task whose best loss is known: a random Markov chain.

Each token has a few successors with fixed random probabilities. A model that
has learnt them reaches the entropy rate of the chain, and none does better: a
trained model can be judged without another one.

Dimension key:
  S: samples
  L: sequence length, tokens
  V: vocabulary
  B: branches, tokens that may follow a token
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import ClassVar

import numpy as np

from bamboo_jax.data import draws

_ONE = 1 << 32  # Probabilities are multiples of 1 / _ONE: exact everywhere.
_TRAIN, _HELDOUT, _CHAIN = range(3)  # Streams of random bits.


@dataclasses.dataclass(frozen=True)
class MarkovChain:
  """A `source.Source` of walks of a chain, each from its stationary state.

  Each token has `branching` possible successors. `chain_seed` chooses the
  chain, the task; the seed of a run chooses the walks.
  """

  sequence_length: int
  vocab_size: int = 64
  branching: int = 4
  chain_seed: int = 0
  num_heldout: int = 1024

  samples_per_epoch: ClassVar[None] = None  # No walk comes twice.
  manifest: ClassVar[None] = None

  def __post_init__(self) -> None:
    for name, least, most in (
        ("sequence_length", 1, None),
        ("vocab_size", 2, None),
        ("branching", 1, self.vocab_size),
        ("chain_seed", 0, draws.MAX_SEED),
        ("num_heldout", 0, None),
    ):
      value = getattr(self, name)
      if value < least or (most is not None and value > most):
        bound = "" if most is None else f" and at most {most}"
        raise ValueError(
            f"{name} must be at least {least}{bound}, got {value}."
        )

  @property
  def fingerprint(self) -> Mapping[str, str | int | float]:
    """All that the samples depend on, beside the seed."""
    return {"source": "synthetic", **dataclasses.asdict(self)}

  @functools.cached_property
  def transitions_VV(self) -> np.ndarray:
    """Probability of the next token (column) after a token (row), float64."""
    next_VB, upper_VB = self._table
    parts_VB = np.diff(upper_VB, axis=1, prepend=0) / _ONE
    transitions_VV = np.zeros((self.vocab_size, self.vocab_size))
    np.put_along_axis(transitions_VV, next_VB, parts_VB, axis=1)
    return transitions_VV

  @functools.cached_property
  def stationary_V(self) -> np.ndarray:
    """Stationary probability of each token, float64 [V]."""
    # It is unique: the chain can always go on to the next number (`_table`).
    equations_VV = self.transitions_VV.T - np.eye(self.vocab_size)
    equations_VV[-1] = 1.0
    ones_V = np.zeros(self.vocab_size)
    ones_V[-1] = 1.0
    return np.linalg.solve(equations_VV, ones_V)

  @functools.cached_property
  def best_loss(self) -> float:
    """Entropy rate in nats per token: the least loss a model can expect."""
    p_VV = self.transitions_VV
    logs_VV = np.log(p_VV, where=p_VV > 0, out=np.zeros_like(p_VV))
    return float(-self.stationary_V @ (p_VV * logs_VV).sum(axis=1))

  def batch(
      self, indices: Sequence[int], *, seed: int
  ) -> dict[str, np.ndarray]:
    """Returns "inputs" and "targets", int32 [S, L] each."""
    return self._walk(seed, indices, _TRAIN)

  def heldout_batch(self, indices: Sequence[int]) -> dict[str, np.ndarray]:
    """Returns "inputs" and "targets" of walks that no run trains on."""
    return self._walk(self.chain_seed, indices, _HELDOUT)

  @functools.cached_property
  def _table(self) -> tuple[np.ndarray, np.ndarray]:
    """Successors of each token, and their cumulative probabilities."""
    size, branching = self.vocab_size, self.branching
    bits = draws.raw_bits(
        self.chain_seed, 0, count=size * (size + branching), stream=_CHAIN
    )
    keys_VV = np.maximum(bits[: size * size].reshape(size, size), 1)
    tokens_V = np.arange(size)
    keys_VV[tokens_V, (tokens_V + 1) % size] = 0  # The first branch.
    next_VB = np.argsort(keys_VV, axis=1, kind="stable")[:, :branching]
    upper_VB = (bits[size * size :] >> np.uint64(32)).astype(np.int64)
    upper_VB = np.maximum(upper_VB.reshape(size, branching), 1)
    upper_VB[:, -1] = _ONE
    return next_VB, np.sort(upper_VB, axis=1)

  def _walk(
      self, seed: int, indices: Sequence[int], stream: int
  ) -> dict[str, np.ndarray]:
    next_VB, upper_VB = self._table
    count = self.sequence_length + 1
    bits_SL = np.array(
        [draws.raw_bits(seed, i, count=count, stream=stream) for i in indices]
    ).reshape(-1, count)
    bits_SL = (bits_SL >> np.uint64(32)).astype(np.int64)
    upper_V = np.round(np.cumsum(self.stationary_V) * _ONE).astype(np.int64)
    walks_SL = np.empty(bits_SL.shape, np.int32)
    walks_SL[:, 0] = np.searchsorted(upper_V[:-1], bits_SL[:, 0], side="right")
    for place in range(1, count):
      tokens_S = walks_SL[:, place - 1]
      branches_S = (bits_SL[:, place, None] >= upper_VB[tokens_S]).sum(axis=1)
      walks_SL[:, place] = next_VB[tokens_S, branches_S]
    return {
        "inputs": walks_SL[:, :-1].copy(),
        "targets": walks_SL[:, 1:].copy(),
    }
