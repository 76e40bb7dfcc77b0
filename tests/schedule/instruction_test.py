from absl.testing import parameterized

from bamboo_jax.schedule import instruction as instruction_lib

Op = instruction_lib.Op
Instruction = instruction_lib.Instruction


class InstructionTest(parameterized.TestCase):

  @parameterized.parameters(
      ("2F0", Instruction(2, Op.FORWARD, 0)),
      ("0B13", Instruction(0, Op.BACKWARD, 13)),
      ("3RF1", Instruction(3, Op.REDUNDANT_FORWARD, 1)),
      ("2SA0>3", Instruction(2, Op.SEND_ACTIVATION, 0, peer=3)),
      ("2RA0<2", Instruction(2, Op.RECV_ACTIVATION, 0, peer=2)),
      ("12SG7>12", Instruction(12, Op.SEND_GRAD, 7, peer=12)),
      ("0RG4<10", Instruction(0, Op.RECV_GRAD, 4, peer=10)),
  )
  def test_prints(self, text, want):
    self.assertEqual(str(want), text)

  @parameterized.parameters(("A", "2SA5>8", "2RA5<7"), ("G", "2SG5>8", "2RG5<7"))
  def test_transfer_has_two_ends(self, kind, send, receive):
    transfer = instruction_lib.Transfer(kind, 2, 5, source=7, destination=8)
    self.assertEqual(str(transfer.send), send)
    self.assertEqual(str(transfer.receive), receive)
    self.assertEqual(transfer.send.transfer(transfer.source), transfer)
    self.assertEqual(transfer.receive.transfer(transfer.destination), transfer)
