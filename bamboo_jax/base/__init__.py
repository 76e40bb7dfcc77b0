"""What every other package may use.

calls     packages that can be called
errors    exception classes, one for each thing that code does differently
files     atomic writes, locks on folders, retried reads
extras    packages that only some users need
functions functions of the user's own, by name: "file.py:function"
garbage   shorter garbage collections
ids       numbers of nodes, stages, ... as types that cannot be mixed up
json      dataclasses as JSON and back; import it as `json_lib`
logs      one format for all logs of a run
names     messages for misspelt names
packaged  configs and tables that come with the package
options   options of a config checked against a function's signature
ports     free ports of this machine
threads   calls that may block forever
types     types that several packages share: PyTree, Place
"""

from bamboo_jax import base
from bamboo_jax.base.errors import AttemptOverError
from bamboo_jax.base.errors import CallbackError
from bamboo_jax.base.errors import CheckpointError
from bamboo_jax.base.errors import CompilationError
from bamboo_jax.base.errors import DamagedCheckpointError
from bamboo_jax.base.errors import DataError
from bamboo_jax.base.errors import EndedError
from bamboo_jax.base.errors import FencedError
from bamboo_jax.base.errors import InfeasibleError
from bamboo_jax.base.errors import MissingExtraError
from bamboo_jax.base.errors import MissingFileError
from bamboo_jax.base.errors import NodeFailedError
from bamboo_jax.base.errors import NonFiniteError
from bamboo_jax.base.errors import PeerRemovedError
from bamboo_jax.base.errors import ReplicaMismatchError
from bamboo_jax.base.errors import RunFailedError
from bamboo_jax.base.errors import StaleProfileError
from bamboo_jax.base.errors import UnrecoverableHereError
from bamboo_jax.base.errors import ViewChangedError
from bamboo_jax.base.files import ask_again
from bamboo_jax.base.files import find_danger
from bamboo_jax.base.files import find_full
from bamboo_jax.base.files import lock_folder
from bamboo_jax.base.files import open_lock
from bamboo_jax.base.files import write_atomically
from bamboo_jax.base.functions import describe_error
from bamboo_jax.base.functions import find_code
from bamboo_jax.base.functions import find_function
from bamboo_jax.base.functions import find_own_line
from bamboo_jax.base.functions import is_function_name
from bamboo_jax.base.ids import by_node
from bamboo_jax.base.ids import by_stage
from bamboo_jax.base.ids import NodeId
from bamboo_jax.base.ids import nodes
from bamboo_jax.base.ids import ShareId
from bamboo_jax.base.ids import StageId
from bamboo_jax.base.ids import stages
from bamboo_jax.base.ids import StepId
from bamboo_jax.base.ids import ViewId
from bamboo_jax.base.names import hint_at
from bamboo_jax.base.names import suggest
from bamboo_jax.base.options import check_none
from bamboo_jax.base.options import check_options
from bamboo_jax.base.options import fits
from bamboo_jax.base.options import OPTIONS
from bamboo_jax.base.types import PyTree
