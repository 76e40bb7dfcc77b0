"""An agent with sockets and records, whose folder hangs."""

import asyncio
import tempfile
import threading
import unittest

from bamboo_jax.cluster import records as records_lib
from bamboo_jax.cluster.agent import agent as agent_lib
from bamboo_jax.net import identity as identity_lib
from tests.cluster.agent import given


class AgentTest(unittest.IsolatedAsyncioTestCase):

  async def test_a_folder_that_hangs_holds_up_nothing_else(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    agent = agent_lib.make_agent(
        records_lib.Records(folder, b"key"),
        given.make_options("n0", host="127.0.0.1", num_nodes=1, workdir=folder),
        identity_lib.issue(b"", run="run", role="agent", name="n0"),
    )
    over = threading.Event()
    calls = [asyncio.ensure_future(agent._judge(lambda _: over.wait(60))) for _ in range(40)]
    await asyncio.sleep(0)
    try:
      async with asyncio.timeout(10):
        life = asyncio.create_task(agent.run())
        while not await agent._judge(records_lib.Records.names, "tickets/0"):
          await asyncio.sleep(0.01)  # Until it has a number.
        calls[0].cancel()  # The flow has ended; its call goes on.
        life.cancel()  # It is told to end at once.
        await asyncio.wait([life])
    finally:
      over.set()
      done = await asyncio.gather(*calls, return_exceptions=True)
    self.assertIsInstance(done[0], asyncio.CancelledError)
    self.assertEqual(done[1:], [True] * 39)
