"""What every other package may use.

calls     packages that can be called
errors    exception classes, one for each thing that code does differently
files     atomic writes, locks on folders, retried reads
extras    packages that only some users need
functions functions of the user's own, by name: "file.py:function"
json      dataclasses as JSON and back; import it as `json_lib`
logs      one format for all logs of a run
names     messages for misspelt names, options checked against a function's signature
packaged  configs and tables that come with the package
threads   calls that may block forever
types     types that several packages share: PyTree, Place, numbers of nodes, stages, ...
"""

from bamboo_jax import base
from bamboo_jax.base.errors import (
    AttemptOverError,
    CallbackError,
    CheckpointError,
    CompilationError,
    DamagedCheckpointError,
    DataError,
    EndedError,
    FencedError,
    InfeasibleError,
    MissingExtraError,
    MissingFileError,
    NodeFailedError,
    NonFiniteError,
    PeerRemovedError,
    ReplicaMismatchError,
    RunFailedError,
    ViewChangedError,
)
from bamboo_jax.base.files import (
    ask_again,
    find_cache,
    find_danger,
    find_full,
    find_place,
    is_bucket,
    lock_folder,
    make_temporary,
    naming,
    open_lock,
    refuse_url,
    remove_temporary,
    sync,
    write_atomically,
)
from bamboo_jax.base.functions import (
    describe_error,
    drop_other_frames,
    find_code,
    find_function,
    find_own_line,
    is_function_name,
    render_own_traceback,
)
from bamboo_jax.base.names import check_options, fits, hint_at, OPTIONS, suggest
from bamboo_jax.base.types import (
    by_node,
    by_stage,
    NodeId,
    nodes,
    PyTree,
    ShareId,
    StageId,
    stages,
    StepId,
    StrPath,
    ViewId,
)
