import asyncio
import functools
import os
import resource
import signal
import types
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.cluster import judge
from bamboo_jax.local_cluster import node
from bamboo_jax.training.setup import accept
from tests import folders, tiny
from tests.cluster.agent import given


async def live(reason=""):
  return reason


class NodeTest(folders.FolderCase):

  def lead(self, *lives, **changes):
    """Runs a node whose agents are these, one after the other; returns what each was given."""
    given_to, lives = [], iter(lives)

    def make_agent(records, options, identity, spare):
      given_to.append((options.is_again, spare))
      facts = dict(run=live, must_restart=False, has_left=False, is_mistake=False)
      return types.SimpleNamespace(**facts | next(lives))

    self.enterContext(mock.patch.object(node.agent_lib, "make_agent", make_agent))
    return node.run(None, given.make_options("n0", **changes), None, "spare"), given_to

  def test_as_many_files_as_may_be(self):
    """Others open two sockets each to an agent: there may be hundreds."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    node.allow_files()
    found = resource.getrlimit(resource.RLIMIT_NOFILE)
    self.assertEqual(found, (limits[1], limits[1]))

  def test_what_nodes_must_agree_on(self):
    code = self.folder / "mine.py"
    code.write_text("")
    config = accept.accept(tiny.make_config(optimizer__name=f"{code}:make"))

    def facts(text="", **environ):
      code.write_text(text)
      with mock.patch.dict(os.environ, environ):
        nothing = dict.fromkeys(("zone", "host", "command"), "")
        return node.make_options(
            config, workdir=str(self.folder), num_nodes=2, name="n0", **nothing
        ).config

    there = facts()
    self.assertEqual(judge.find_difference(there, facts()), "")
    for here, message in (
        (
            facts(JAX_THREEFRY_PARTITIONABLE="0"),
            'environment.JAX_THREEFRY_PARTITIONABLE is absent there and "0" he',
        ),
        (
            facts(XLA_FLAGS="--xla_cpu_enable_fast_math=true"),
            'environment.XLA_FLAGS is .* there and ".*fast_math=true" here',
        ),
        (facts("# Edited."), f'code.{code} is ".*" there and ".*" here'),
    ):
      self.assertRegex(judge.find_difference(there, here), message)

  def test_signals(self):
    """A first SIGTERM is a notice, as any SIGUSR1 or SIGHUP; a second ends."""
    heard = []

    def give_notice(reason):
      heard.append(reason)
      return reason != "SIGTERM"

    async def run():
      for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM):
        signal.raise_signal(number)
        await asyncio.sleep(0)
      await asyncio.sleep(60)

    with self.assertRaises(KeyboardInterrupt):
      self.lead(dict(run=run, give_notice=give_notice))
    self.assertEqual(heard, ["SIGUSR1", "SIGHUP", "SIGTERM"])

  @parameterized.parameters(
      (True, base.EndedError, "^no such layer$"),
      (False, base.NodeFailedError, "^Node n0: .*status 2. Its log ends: "),
      # Of a full disk.
      (True, base.EndedError, "^its worker ended with exit status 2$", ""),
      (False, base.NodeFailedError, r"^Node n0: .*status 2\.$", ""),
  )
  def test_the_exit_status_says_who_has_failed(
      self, is_mistake, kind, said, told="info: x\nerror: no such layer\n"
  ):
    log = self.folder / "n0.log"
    log.write_text(told)
    run = functools.partial(live, "its worker ended with exit status 2")
    with self.assertRaisesRegex(kind, said) as caught:
      self.lead(dict(run=run, is_mistake=is_mistake), log=str(log))
    self.assertIs(type(caught.exception), kind)

  @parameterized.parameters(True, False)
  def test_who_begins_again_is_told_so(self, has_left):
    again = dict(must_restart=True)
    is_complete, lives = self.lead(again, again, dict(has_left=has_left))
    self.assertEqual(is_complete, not has_left)
    self.assertEqual(lives, [(False, "spare"), (True, None), (True, None)])
