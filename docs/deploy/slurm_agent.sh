#!/usr/bin/env bash
# One node of a cluster under Slurm; every task of the array is a job of its own,
# so a preempted one is requeued alone. Tried with Slurm 22.05, see docs/measurements/cluster.md.
#
#   sbatch --array=0-8 --partition=preemptible slurm_agent.sh
#
#SBATCH --job-name=bamboo
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@60
# STORE runs etcd, see store.sh. WORKDIR and SECRET are
# on a file system that all nodes share; SECRET is readable for you alone.
set -euo pipefail
: "${STORE:?host of etcd}" "${WORKDIR:?shared folder}" "${SECRET:?file}"
: "${CONFIG:=quickstart}" "${NODES:=8}"
topology="${SLURM_TOPOLOGY_ADDR:-$SLURMD_NODENAME}"

is_done() { test -e "$WORKDIR/summary.json"; }

is_done && exit 0
# Slurm sends SIGTERM to the step when it preempts the job, and 60 s before the
# time limit: others take over what the node does, and the agent ends.
srun --ntasks=1 bamboo agent \
  --config="$CONFIG" \
  --workdir="$WORKDIR" \
  --etcd="https://$STORE:2379" \
  --nodes="$NODES" \
  --run="${RUN:-run}" \
  --name="n$SLURM_ARRAY_TASK_ID-${SLURM_RESTART_COUNT:-0}" \
  --zone="${topology%.*}" \
  --host="$(hostname -I | cut -d ' ' -f 1)" \
  --secret="$SECRET" || echo "The agent has ended with status $?."
# The id of one job is that of the whole array; this names the task.
is_done || scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
