import asyncio
import dataclasses
import os
import pathlib
import resource
import signal
import tempfile
import types
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.cluster import judge
from bamboo_jax.local_cluster import node
from bamboo_jax.training.setup import accept
from tests import tiny
from tests.cluster.agent import given


class NodeTest(parameterized.TestCase):

  def test_as_many_files_as_may_be(self):
    """Others open two sockets each to an agent: there may be hundreds."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    node.allow_files()
    found = resource.getrlimit(resource.RLIMIT_NOFILE)
    self.assertEqual(found, (limits[1], limits[1]))

  def test_what_nodes_must_agree_on(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    code = folder / "mine.py"
    code.write_text("")
    config = accept.accept(tiny.make_config(optimizer__name=f"{code}:make"))

    def facts(**environ):
      with mock.patch.dict(os.environ, environ):
        options = node.make_options(
            config,
            workdir=str(folder),
            num_nodes=2,
            name="n0",
            **dict.fromkeys(("zone", "host", "command"), ""),
        )
      return options.config

    for change, message in (
        (
            lambda: facts(JAX_THREEFRY_PARTITIONABLE="0"),
            'environment.JAX_THREEFRY_PARTITIONABLE is absent there and "0" he',
        ),
        (
            lambda: facts(XLA_FLAGS="--xla_cpu_enable_fast_math=true"),
            'environment.XLA_FLAGS is .* there and ".*fast_math=true" here',
        ),
        (
            lambda: code.write_text("# Edited.") and facts(),
            f'code.{code} is ".*" there and ".*" here',
        ),
    ):
      there, here = facts(), change()
      self.assertEqual(judge.find_difference(there, there), "")
      self.assertRegex(judge.find_difference(there, here), message)

  def test_signals(self):
    """A first SIGTERM is a notice, as any SIGUSR1 or SIGHUP; a second ends."""
    heard = []

    class Agent:

      def __init__(self, *args):
        pass

      def give_notice(self, reason):
        heard.append(reason)
        return reason != "SIGTERM"

      async def run(self):
        for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM):
          signal.raise_signal(number)
          await asyncio.sleep(0)
        await asyncio.sleep(60)

    self.enterContext(mock.patch.object(node.agent_lib, "make_agent", Agent))
    with self.assertRaises(KeyboardInterrupt):
      node.run(None, given.make_options("n0"), None)
    self.assertEqual(heard, ["SIGUSR1", "SIGHUP", "SIGTERM"])

  def test_the_exit_status_says_who_has_failed(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    log = folder / "n0.log"
    log.write_text("info: x\nerror: no such layer\n")
    options = dataclasses.replace(given.make_options("n0"), log=str(log))

    facts = types.SimpleNamespace(must_restart=False)

    async def run():
      return "its worker ended with exit status 2"

    facts.run = run
    self.enterContext(mock.patch.object(node.agent_lib, "make_agent", lambda *_: facts))
    for facts.is_mistake, kind, said in (
        (True, base.EndedError, "^no such layer$"),
        (False, base.NodeFailedError, "^Node n0: .*status 2. Its log ends: "),
    ):
      with self.assertRaisesRegex(kind, said) as caught:
        node.run(None, options, None)
      self.assertIs(type(caught.exception), kind)

  @parameterized.parameters(True, False)
  def test_who_begins_again_is_told_so(self, has_left):
    lives = []

    class Agent:

      def __init__(self, records, options, identity, spare):
        lives.append((options.is_again, spare))
        self.must_restart, self.has_left = len(lives) < 3, has_left

      async def run(self):
        return ""

    self.enterContext(mock.patch.object(node.agent_lib, "make_agent", Agent))
    is_complete = node.run(None, given.make_options("n0"), None, "spare")
    self.assertEqual(is_complete, not has_left)
    self.assertEqual(lives, [(False, "spare"), (True, None), (True, None)])
