#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two learners, two replay servers and four actors, each in its own container, train CartPole:
# deploy/rl.compose.yaml with the binary given as argument. The test kills a container of each kind and
# starts it again; the others go on. Then it stops the cluster and starts it again for the rest of the
# training, which ends with a policy that balances the pole. Exit code 77: there is no container engine, so
# nothing was tested.
#
#   tests/deploy/rl_compose_test.sh build/cli/tandem
set -euo pipefail

binary="$(realpath "${1:?the tandem binary is expected as argument}")"
compose_file=rl.compose.yaml
source "$(dirname "${BASH_SOURCE[0]}")/compose_cluster.sh"

services=(learner0 learner1 replay0 replay1 actor0 actor1 actor2 actor3)

logs() {
  local service
  for service in "${services[@]}"; do
    echo "--- $service"
    podman logs "$(container "$service")" 2>&1 | tail -n 25
  done >&2
}

pid_of() { podman inspect --format '{{.State.Pid}}' "$(container "$1")"; }
changed() { stat -c %y "$checkpoint" 2> /dev/null || true; }

# await_training WHAT: waits until two checkpoints have been written from now on. A learner writes one only
# after an update, so training goes on.
await_training() {
  local deadline=$((SECONDS + 150)) seen times=0
  seen="$(changed)"
  while ((times < 2)); do
    ((SECONDS < deadline)) || { logs; fail "the training does not go on: $1"; }
    sleep 0.2
    if [[ "$(changed)" != "$seen" ]]; then
      seen="$(changed)"
      times=$((times + 1))
    fi
  done
}

# kill_and_start SERVICE: kills all processes of a container, as the kernel does without memory.
kill_and_start() {
  local pid
  pid="$(pid_of "$1")"
  kill -9 "$pid"
  local deadline=$((SECONDS + 30))
  while [[ "$(pid_of "$1")" == "$pid" ]]; do
    ((SECONDS < deadline)) || { logs; fail "$1 outlived SIGKILL"; }
    sleep 0.1
  done
  # Whether the engine restarts a container (restart: on-failure) is not what is tested here.
  podman start "$(container "$1")" > /dev/null 2>&1 || true
  await_training "after the death of $1"
  say "$1 was killed, and the training goes on"
}

# steps: prints how many steps the checkpoint's policy was trained for.
steps() {
  python3 - "$checkpoint" << 'PYTHON'
import json, struct, sys
with open(sys.argv[1], "rb") as file:
    size, = struct.unpack("<Q", file.read(8))
    print(json.loads(file.read(size))["__metadata__"]["env_steps"])
PYTHON
}

say "train without end"
export TANDEM_RL="jobs/cartpole_impala.yaml --set stop.env_steps=1000000000000"
start_cluster 8
checkpoint="$(podman volume inspect --format '{{.Mountpoint}}' "${project}_shared")/checkpoint.safetensors"
await_training "at the start"
for service in actor0 replay1 replay0 learner1 learner0; do kill_and_start "$service"; done
podman logs "$(container learner0)" 2>&1 | grep 'resumed at step' > /dev/null ||
  { logs; fail "learner0 did not resume"; }

say "stop, and train to the end"
compose down -t 20 > "$work/down.log" 2>&1
done_steps="$(steps)"
export TANDEM_RL="jobs/cartpole_impala.yaml --set stop.env_steps=$((done_steps + 1000000))"
start_cluster 8
deadline=$((SECONDS + 400))
for service in learner0 learner1; do
  until [[ "$(podman inspect --format '{{.State.Status}}' "$(container "$service")")" == exited &&
    "$(exit_code "$service")" == 0 ]]; do
    ((SECONDS < deadline)) || { logs; fail "$service did not end well"; }
    sleep 0.5
  done
done
# The report of learner0: "greedy evaluation      500.00 ...".
evaluation="$(podman logs "$(container learner0)" 2>&1 | grep 'greedy evaluation' | tail -n 1)"
say "learner0 said: $evaluation"
podman logs "$(container learner0)" 2>&1 | grep 'lag of unrolls' | tail -n 1
awk '{ for (i = 1; i <= NF; ++i) if ($i + 0 > 0) exit !($i >= 475); exit 1 }' <<< "$evaluation" ||
  { logs; fail "the policy does not balance the pole"; }
[[ -z "${TANDEM_TEST_VERBOSE-}" ]] || logs
down

say "PASSED: trained CartPole while a container of each kind was killed; nothing left"
