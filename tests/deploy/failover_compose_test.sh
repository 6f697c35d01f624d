#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Three servers with a follower each and two workers, each in its own container, train one job:
# deploy/failover.compose.yaml with the binary given as argument. The job runs once while the primaries of all
# shards are killed, and once undisturbed. Each follower takes over, and the killed container comes back as the
# next follower. The job never stops, and its AUC is that of the undisturbed run. Exit code 77: there is no
# container engine, so nothing was tested.
#
#   tests/deploy/failover_compose_test.sh build/cli/tandem
set -euo pipefail

binary="$(realpath "${1:?the tandem binary is expected as argument}")"
compose_file=failover.compose.yaml
source "$(dirname "${BASH_SOURCE[0]}")/compose_cluster.sh"

# A click log whose best model is known.
"$binary" data planted --rows 150000 --out "$work/data/planted.tsv" > "$work/data.log"
servers=(ps0 ps1 ps2 follower0 follower1 follower2)

logs() {
  local service
  for service in "${servers[@]}" worker0 worker1; do
    echo "--- $service"
    podman logs "$(container "$service")" 2>&1 | tail -n 25
  done >&2
}

# await_end SECONDS: waits until both workers have ended well.
await_end() {
  local deadline=$((SECONDS + $1)) service
  for service in worker0 worker1; do
    until [[ "$(podman inspect --format '{{.State.Status}}' "$(container "$service")")" == exited ]]; do
      ((SECONDS < deadline)) || { logs; fail "$service still runs"; }
      sleep 0.5
    done
    [[ "$(exit_code "$service")" == 0 ]] || { logs; fail "$service failed"; }
  done
}

# auc: prints the test AUC that worker 0 has reported.
auc() {
  podman logs "$(container worker0)" 2>&1 |
    sed -nE 's/^.*tandem deepfm.* (0\.[0-9]+) +[0-9.]+ *$/\1/p' | tail -n 1
}

# shards: prints what `tandem ps status --json` says, asked in a container, where the names of the others mean
# something. It must not be one that is being killed.
shards() {
  podman exec "$(container worker0)" tandem ps status --store worker0:29500 --json 2> /dev/null || true
}

# await_copies: waits until each shard has a primary and a follower in sync. Returns 1 if the training has ended
# before that.
await_copies() {
  local deadline=$((SECONDS + 90))
  until shards | python3 -c '
import json, sys
text = sys.stdin.read()
shards = json.loads(text)["shards"] if text else []
sys.exit(not (len(shards) == 3 and all(s["has_primary"] and s["placement"].get("in_sync") for s in shards)))'; do
    ((SECONDS < deadline)) || { logs; shards >&2; fail "not every shard has a primary and a follower"; }
    [[ "$(podman inspect --format '{{.State.Status}}' "$(container worker0)")" == running ]] || return 1
    sleep 0.2
  done
}

# primary_of SHARD: prints the service that is the shard's primary.
primary_of() {
  shards | python3 -c '
import json, sys
shard = json.load(sys.stdin)["shards"][int(sys.argv[1])]
print(shard["placement"]["primary"]["address"].split(":")[0])' "$1"
}

pid_of() { podman inspect --format '{{.State.Pid}}' "$(container "$1")"; }

# kill_and_start SERVICE: kills all processes of a container, as the kernel does without memory.
kill_and_start() {
  local pid deadline=$((SECONDS + 30))
  pid="$(pid_of "$1")"
  kill -9 "$pid"
  while [[ "$(pid_of "$1")" == "$pid" ]]; do
    ((SECONDS < deadline)) || { logs; fail "$1 outlived SIGKILL"; }
    sleep 0.1
  done
  # Whether the engine restarts a container (restart: on-failure) is not what is tested here.
  podman start "$(container "$1")" > /dev/null 2>&1 || true
}

# train_undisturbed: trains to the end, sets $undisturbed to the AUC, and checks that all servers ended well.
train_undisturbed() {
  local service deadline
  start_cluster 8
  await_end 400
  undisturbed="$(auc)"
  [[ -n "$undisturbed" ]] || { logs; fail "worker 0 reported no AUC"; }
  for service in "${servers[@]}"; do
    deadline=$((SECONDS + 30))
    until [[ "$(podman inspect --format '{{.State.Status}}' "$(container "$service")")" == exited ]]; do
      ((SECONDS < deadline)) || { logs; fail "$service still runs though the job has ended"; }
      sleep 0.2
    done
    [[ "$(exit_code "$service")" == 0 ]] || { logs; fail "$service ended with $(exit_code "$service")"; }
  done
  down
}

# kill_primaries: kills the primary of each shard once all copies are complete. Returns 1 if the training has ended
# before the last killed container was a follower again.
kill_primaries() {
  local shard victim
  start_cluster 8
  for shard in 0 1 2; do
    await_copies || return 1
    victim="$(primary_of "$shard")" || return 1
    say "kill -9 of $victim, the primary of shard $shard"
    kill_and_start "$victim"
  done
  await_copies
}

# A fast machine may need more epochs, so that the training is still under way after the last death.
killed=0
for epochs in 6 18 54; do
  export TANDEM_TRAIN="jobs/planted.yaml --set data.train=/data/planted.tsv --set train.batch_size=64 \
--set train.epochs=$epochs --set train.early_stopping.patience=0 --no-baselines"
  say "train $epochs epochs while each shard's primary is killed"
  if kill_primaries; then killed=1; break; fi
  say "the training was over too early"
  down
done
((killed == 1)) || fail "54 epochs were over too early"
await_end 400
disturbed="$(auc)"
[[ -z "${TANDEM_TEST_VERBOSE-}" ]] || logs
down
say "the AUC is $disturbed; train undisturbed"
train_undisturbed

python3 - "$undisturbed" "$disturbed" << 'PYTHON' || fail "AUC $disturbed instead of $undisturbed"
import sys
undisturbed, disturbed = map(float, sys.argv[1:])
sys.exit(not (undisturbed > 0.6 and abs(undisturbed - disturbed) < 0.005))
PYTHON
say "PASSED: AUC $disturbed with three dead primaries, $undisturbed without; nothing left"
