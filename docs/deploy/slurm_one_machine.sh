#!/usr/bin/env bash
# Slurm on one machine, with several nodes, to try a run before it goes to a
# cluster. As root, on Debian or Ubuntu:
#
#   apt-get install slurmctld slurmd slurm-client munge
#   slurm_one_machine.sh FOLDER 5
#
# Writes FOLDER/slurm.conf, starts the daemons, and ends them and all jobs on
# Ctrl-C. Jobs in partition `urgent` preempt those in `preemptible`. Each node has
# one core and one "GPU".
set -euo pipefail
folder="$(realpath "${1:?folder for the files of Slurm}")" last=$((${2:-5} - 1))
first_port="${FIRST_PORT:-17002}" host="$(hostname)"
mkdir -p "$folder/state"
chmod 755 "$folder"
export SLURM_CONF="$folder/slurm.conf"
cat >"$SLURM_CONF" <<END
ClusterName=one_machine
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$first_port
SlurmUser=root
AuthType=auth/munge
# A requeued job waits until its credentials have expired.
AuthInfo=socket=$folder/munge.socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=s[0-$last] NodeHostname=$host NodeAddr=127.0.0.1 CPUs=1 Gres=gpu:1 \
Port=[$((first_port + 1))-$((first_port + 1 + last))]
PartitionName=preemptible Nodes=ALL Default=YES PriorityTier=1 GraceTime=40
PartitionName=urgent Nodes=ALL PriorityTier=3 PreemptMode=OFF
END
echo "NodeName=s[0-$last] Name=gpu File=/dev/null" >"$folder/gres.conf"
(umask 077; head -c 1024 /dev/urandom >"$folder/munge.key")

finish() {
  scancel --user=root || true
  for _ in $(seq 100); do
    test -n "$(squeue --noheader)" || break
    sleep 0.1
  done
  kill $(jobs -p) 2>/dev/null || true
  wait
}

# In sessions of their own, so that Ctrl-C reaches this script alone.
setsid munged --foreground --force --key-file="$folder/munge.key" \
  --socket="$folder/munge.socket" --pid-file="$folder/munge.pid" \
  --seed-file="$folder/munge.seed" >"$folder/munge.log" 2>&1 &
trap finish EXIT
trap 'exit 0' INT TERM
until test -S "$folder/munge.socket"; do sleep 0.1; done
setsid slurmctld -D -i 2>/dev/null &
for i in $(seq 0 "$last"); do setsid slurmd -D -N "s$i" 2>/dev/null & done
until sinfo --noheader --states=idle --format=%D 2>/dev/null |
  grep -q "^$((last + 1))$"; do sleep 0.2; done
echo "ready: export SLURM_CONF=$SLURM_CONF"
wait
