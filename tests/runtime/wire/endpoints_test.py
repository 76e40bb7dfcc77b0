import contextlib
import os
import socket
import struct
from unittest import mock

from absl.testing import absltest, parameterized

from bamboo_jax.runtime.wire import endpoints


class ListenTest(parameterized.TestCase):

  @parameterized.parameters(
      ("127.0.0.1", "unix:"),
      ("127.0.0.2", "unix:"),
      ("localhost", "unix:"),
      ("::1", "unix:"),
      ("0.0.0.0", "0.0.0.0:"),
  )
  def test_address(self, host, prefix):
    endpoint = endpoints.listen(host, None, silence_secs=3.0)  # Used by connections only.
    self.addCleanup(endpoint.close)
    self.assertStartsWith(endpoint.address, prefix)

  def test_an_unknown_name(self):
    with self.assertRaises(socket.gaierror):
      endpoints.listen("no_such_host.invalid", None, silence_secs=3.0)

  @parameterized.parameters((0, None), (1, "is not that of this run"))
  def test_other_users(self, offset, problem):
    endpoint = endpoints.listen_unix()
    self.addCleanup(endpoint.close)
    connection = mock.create_autospec(socket.socket, instance=True)
    found = struct.pack("3i", os.getpid(), os.getuid() + offset, os.getgid())
    connection.getsockopt.return_value = found
    context = contextlib.nullcontext()
    if problem:
      context = self.assertRaisesRegex(ConnectionError, problem)
    with context:
      endpoint.secure(connection, is_server=True)


if __name__ == "__main__":
  absltest.main()
