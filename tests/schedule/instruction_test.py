from absl.testing import parameterized

from bamboo_jax.schedule import instruction as instruction_lib


class InstructionTest(parameterized.TestCase):

  @parameterized.parameters(("activations", "2SA5>8", "2RA5<7"), ("gradients", "2SG5>8", "2RG5<7"))
  def test_transfer_has_two_ends(self, kind, send, receive):
    transfer = instruction_lib.Transfer(kind, 2, 5, source=7, destination=8)
    self.assertEqual(str(transfer.send), send)
    self.assertEqual(str(transfer.receive), receive)
    self.assertEqual(transfer.send.transfer(transfer.source), transfer)
    self.assertEqual(transfer.receive.transfer(transfer.destination), transfer)
