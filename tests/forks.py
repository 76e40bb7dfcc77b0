"""Commands that start at once, as copies of a process that has imported JAX.

  test   --order, a line of JSON-->  server, one for all tests of a process
         <--return code----------     |-- fork --> command

A command is a process of its own, with its own exit code, output, environment
and flags, but without the second or two that imports take.
"""

import atexit
import functools
import importlib
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import threading
import types

from bamboo_jax.cluster import copies

_SERVER = "from tests import forks; forks.serve()"
_SERVERS = {}  # By process. No `functools.cache`, which conftest clears.


def run(arguments, *, cwd, env, timeout_secs):
  """Runs Python with arguments ("-m", module, ...) or ("-c", code, ...).

  Returns a `subprocess.CompletedProcess` with texts; may raise
  `subprocess.TimeoutExpired`.
  """
  with tempfile.TemporaryDirectory() as folder:
    out, err = (pathlib.Path(folder, name) for name in ("out", "err"))
    order = {
        "arguments": arguments,
        "cwd": str(cwd),
        "env": env,
        "files": [str(out), str(err)],
        "timeout_secs": timeout_secs,
    }
    if os.getpid() not in _SERVERS:
      _SERVERS[os.getpid()] = _start_server()
    server = _SERVERS[os.getpid()]
    server.stdin.write(json.dumps(order) + "\n")
    server.stdin.flush()
    code = json.loads(server.stdout.readline())
    if code is None:
      raise subprocess.TimeoutExpired(arguments, timeout_secs, out.read_bytes())
    texts = (out.read_text(), err.read_text())
  return subprocess.CompletedProcess(arguments, code, *texts)


def _start_server():
  server = subprocess.Popen(
      [sys.executable, "-c", _SERVER],
      cwd=pathlib.Path(__file__).parents[1],
      env={**os.environ, "JAX_PLATFORMS": "cpu"},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
  )
  atexit.register(server.stdin.close)  # So it ends.
  return server


def serve():
  """Runs the commands that are ordered, one by one, until there are no more."""
  importlib.import_module("bamboo_jax.training.run")  # It starts no devices.

  for line in sys.stdin:
    order = json.loads(line)
    copy = copies.Copy(functools.partial(_live, order))
    try:
      code = copy.wait(order["timeout_secs"])
    except subprocess.TimeoutExpired:
      copy.kill()
      copy.wait()
      code = None
    print(json.dumps(code), flush=True)


def _live(order):
  for number, path in enumerate(order["files"], 1):
    with open(path, "wb") as file:
      os.dup2(file.fileno(), number)
  os.environ.clear()
  os.environ.update(order["env"])
  os.chdir(order["cwd"])
  how, what, *arguments = order["arguments"]
  sys.argv = [what, *arguments]
  try:
    if how == "-m":
      runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
      main = sys.modules["__main__"] = types.ModuleType("__main__")
      exec(compile(what, "<string>", "exec"), vars(main))  # As `python -c` does.
  finally:  # As at the end of Python.
    threading._shutdown()
    atexit._run_exitfuncs()
