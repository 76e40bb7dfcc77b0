"""A plan as text: layers, memory and times of stages and of a step."""

from bamboo_jax import base
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.plan import cost_model, memory as memory_lib, planner
from bamboo_jax.schedule import failover, instruction as instruction_lib, redundancy

_mib = memory_lib.format_mib


def render_plan(plan: planner.Plan) -> str:
  """Returns the plan as text, without the rows of its schedules.

  Sizes are in MiB, times in ms per microbatch; the bubble is the fraction of
  the passes' time in which a stage waits, averaged over pipelines.
  """
  batch, limit, t = plan.batch, plan.memory_limit_bytes, plan.step_time
  lines = [
      f"{plan.num_pipelines} pipelines x {plan.num_stages} stages, "
      f"{batch.num_shares} shares, schedule {plan.schedule_name}, "
      + ("no memory limit" if limit is None else f"limit {_mib(limit)} MiB"),
      "",
      _render_stages(plan),
  ]
  # The peak of each phase, on the worst node now and after a death.
  stage = max(range(plan.num_stages), key=lambda s: plan.memory[s].total_bytes)
  found: list[tuple[object, memory_lib.NodeMemory]] = [(f"node {stage}", plan.memory[stage])]
  for who, memory in found + ([plan.worst_memory] if plan.worst_memory else []):
    phases = ", ".join(f"{n} {_mib(b)}" for n, b in memory.phases.items())
    lines.append(f"most memory: {who}: {_mib(memory.total_bytes)} MiB ({phases})")
  parts = " + ".join(f"{name.removesuffix('_ms')} {ms:.2f}" for name, ms in vars(t).items())
  source = "measured" if plan.profile.measured else "estimated"
  lines += [
      "",
      f"predicted step: {t.total_ms:.2f} ms = {parts} "
      f"({100 * plan.timeline.mean_bubble:.1f} % bubble, from {source} costs)",
  ]
  return "\n".join(lines)


def render_profile(profile: cost_model.Profile) -> str:
  """Returns a line for each layer and one for link and vote, of `name=value` pairs."""
  lines = [
      f"layer={layer.name} forward_ms={layer.forward_ms:.3f} "
      f"backward_ms={layer.backward_ms:.3f} update_ms={layer.update_ms:.3f} "
      f"parameter_bytes={layer.parameter_bytes} "
      f"residual_bytes={layer.residual_bytes}"
      for layer in profile.layers
  ]
  lines.append(
      f"link_latency_ms={profile.link_latency_ms:.3f} "
      f"link_bytes_per_ms={profile.link_bytes_per_ms:.0f} "
      f"vote_ms={profile.vote_ms:.3f}"
  )
  return "\n".join(lines)


def _render_stages(plan: planner.Plan) -> str:
  """Returns a table with one line per stage."""
  header: tuple[str, ...] = (
      *("stage", "layers", "", "F ms", "B ms", "bubble %"),
      *("params", "slots", "grads", "residuals", "transfers", "working"),
      *("replica", "refresh", "total MiB"),
  )
  rows = [header]
  for stage in base.stages(plan.num_stages):
    owned = plan.partition.layers(stage)
    names = [plan.profile.layers[i].name for i in owned]
    m = plan.memory[stage]
    parts = (
        *(m.parameter_bytes, m.slot_bytes, m.accumulator_bytes + m.sum_bytes),
        *(m.residual_bytes, m.transfer_bytes),
        m.working_bytes + m.copy_bytes,
        *(m.replica_bytes, m.received_bytes + m.buffer_bytes, m.total_bytes),
    )
    rows.append(
        (
            str(stage),
            names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}",
            f"({len(names)})",
            f"{plan.costs.forward_ms[stage]:.3f}",
            f"{plan.costs.backward_ms[stage]:.3f}",
            f"{100 * plan.timeline.bubbles[base.NodeId(stage)]:.1f}",
            *(_mib(part) for part in parts),
        )
    )
  return table_lib.align(rows, left={1})


def render_redundancy(
    plan: planner.Plan, redundant: redundancy.PlannedRows, effect: redundancy.Effect
) -> str:
  """Returns overhead and coverage of redundancy, and the bytes of replicas."""
  mode, refresh = plan.redundant.mode, plan.redundant.refresh
  lines = [
      f"redundancy: {mode}, {effect.passes} redundant forward passes, predicted overhead "
      f"{100 * max(0.0, effect.overhead):.1f} %, coverage {100 * effect.coverage:.1f} %"
  ]
  costs, rows = plan.costs, redundant.timeline.instructions
  for stage, node in failover.Roles.initial(plan.owners[0]).shadows.items():
    memory = plan.memory[stage]
    state = memory.parameter_bytes + memory.slot_bytes
    # Until the commit: what it sends, and what its redundant forward passes leave.
    ahead = [i.stage for i in rows[node] if i.op is instruction_lib.Op.REDUNDANT_FORWARD]
    kept = sum(costs.residual_bytes[s] for s in ahead)
    ahead += [i.stage for i in rows[node] if i.is_send]
    kept += sum(costs.activation_bytes[s] for s in ahead)
    sent = cost_model.refresh_bytes(plan.profile.by_stage(plan.partition.bounds)[stage], refresh)
    lines.append(
        f"node {node} holds the replica of stage {stage}: "
        f"{state / 2**20:.1f} MiB, refreshed by {sent / 2**20:.1f} MiB a step; "
        f"keeps up to {kept / 2**20:.1f} MiB in host memory"
    )
  return "\n".join(lines)
