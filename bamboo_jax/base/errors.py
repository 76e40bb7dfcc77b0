"""Exceptions, one for each event that some code treats differently.

A mistake of the caller is a plain `ValueError`; some classes derive from it, so
that a command still ends with one line.
"""

from bamboo_jax.base import logs


class InfeasibleError(ValueError):
  """No plan satisfies the request; the message says by how much it misses."""


class EndedError(ValueError):
  """A node or a run ended early; the message suffices, without a traceback."""


class RunFailedError(EndedError):
  """The user's code or data ended the run: every node would meet the error."""


class NodeFailedError(EndedError):
  """One node ended early; others go on, and it may be started again."""


class CallbackError(EndedError):
  """A callback or logger of the user has raised the cause of this error."""


class MissingExtraError(ValueError):
  """A package of an extra is not installed; the message names the extra."""


class DataError(ValueError):
  """A data source cannot be read."""


class MissingFileError(DataError):
  """No file matches the path or pattern `pattern`."""

  def __init__(self, message: str, pattern: str) -> None:
    super().__init__(message)
    self.pattern = pattern


class CheckpointError(ValueError):
  """A checkpoint cannot be written, read or does not fit the model."""


class DamagedCheckpointError(CheckpointError):
  """A checkpoint differs from what was saved; an older one may be intact."""


class CompilationError(RuntimeError):
  """A program could not be compiled in the background of training."""


class NonFiniteError(ValueError):
  """Loss, gradient or state are not finite, or too many steps were skipped."""


class ReplicaMismatchError(RuntimeError):
  """A replica differs from its owner; training must stop."""


class ViewChangedError(RuntimeError):
  """The view changed; the work in progress must be planned again."""


class AttemptOverError(RuntimeError):
  """A transfer belongs to an attempt of a step that has been abandoned."""


class PeerRemovedError(RuntimeError):
  """A value was sent to, or awaited from, a node that was removed."""

  def __init__(self, node: int, why: str) -> None:
    super().__init__(f"{logs.name_of(node)} was removed: {why}.")
    self.node = node


class FencedError(RuntimeError):
  """Other nodes have taken over the files of a run; this process must exit."""
