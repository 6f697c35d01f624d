#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two servers and two workers, each in its own container, train one job: deploy/compose.yaml with the
# binary given as argument. Then the test kills a worker: the whole job must end and name the worker
# that died. Exit code 77: there is no container engine, so nothing was tested.
#
#   tests/deploy/compose_test.sh build/cli/tandem
set -euo pipefail

binary="$(realpath "${1:?the tandem binary is expected as argument}")"
compose_file=compose.yaml
source "$(dirname "${BASH_SOURCE[0]}")/compose_cluster.sh"

# A small version of InstEval: the same columns, and a rating that depends on student and lecturer.
python3 - > "$work/data/insteval.csv" << 'PYTHON'
import random
generator = random.Random(5)
print("s,d,studage,lectage,service,dept,y")
for _ in range(6000):
    s, d = generator.randrange(200), generator.randrange(80)
    y = 1 + (s * 7 % 5 + d * 3 % 5 + generator.randrange(3)) // 2 % 5
    print(s, d, 2 + s % 4, 1 + d % 6, d % 2, d % 14, y, sep=",")
PYTHON

# up ARGUMENTS...: starts the cluster, which trains with these additional arguments.
up() {
  export TANDEM_TRAIN="jobs/insteval.yaml --set data.train=/data/insteval.csv $*"
  start_cluster 4
}

# await_end SECONDS: waits until all four containers have ended; after SECONDS it fails and prints their logs.
await_end() {
  local deadline=$((SECONDS + $1)) running
  while :; do
    running="$(podman ps -q --filter "label=com.docker.compose.project=$project" \
      --filter status=running | wc -l)"
    ((running == 0)) && return
    ((SECONDS < deadline)) || { logs; fail "$running containers still run after $1 s"; }
    sleep 0.5
  done
}

logs() {
  local service
  for service in ps0 ps1 worker0 worker1; do
    echo "--- $service"
    podman logs "$(container "$service")" 2>&1 | tail -n 25
  done >&2
}

say "train to the end"
up --set train.epochs=2
await_end 120
for service in worker0 worker1 ps0 ps1; do
  code="$(exit_code "$service")"
  [[ "$code" == 0 ]] || { logs; fail "$service ended with $code"; }
done
volume="$(podman volume inspect --format '{{.Mountpoint}}' "${project}_shared")"
files="$(find "$volume" -type f | wc -l)"
((files > 0)) || fail "the shared volume holds no checkpoint"
say "worker 0 said: $(podman logs "$(container worker0)" 2>&1 | grep -i "tandem deepfm" | tail -n 1)"
say "the checkpoint has $files files"

say "a second up goes on from the checkpoint"
compose down -t 1 > "$work/down.log" 2>&1  # the volume stays
podman network rm "${project}_default" > /dev/null 2>&1 || true
up --set train.epochs=4
await_end 120
[[ "$(exit_code worker0)" == 0 ]] || { logs; fail "worker0 ended with $(exit_code worker0)"; }
said="$(podman logs "$(container worker0)" 2>&1)"
[[ "$said" == *"epoch 3/4"* && "$said" != *"epoch 1/4"* ]] ||
  { logs; fail "the second up did not resume after the 2 epochs of the first"; }
down

# up_and_training: starts a cluster that trains without end, and waits until it trains.
up_and_training() {
  up --set train.epochs=1000000 --set train.early_stopping.patience=0 \
    --set checkpoint.every_epochs=0 --set train.timeout_seconds=40
  local deadline=$((SECONDS + 90))
  until podman logs "$(container worker0)" 2>&1 | grep -i epoch > /dev/null; do
    ((SECONDS < deadline)) || { logs; fail "worker 0 did not begin to train"; }
    sleep 0.5
  done
}

say "kill -9 of worker 1 while training"
up_and_training
podman kill --signal KILL "$(container worker1)" > /dev/null
await_end 90
[[ "$(exit_code worker0)" != 0 ]] || { logs; fail "worker 0 ended with 0 though worker 1 died"; }
# Not grep -q: it exits at the first match, and pipefail would then report podman's broken pipe.
podman logs "$(container worker0)" 2>&1 | grep -iE '(worker|rank)[ /]1' > /dev/null ||
  { logs; fail "worker 0 does not name worker 1"; }
say "worker 0 said: $(podman logs "$(container worker0)" 2>&1 | grep -iE '(worker|rank)[ /]1' | tail -n 1)"
[[ -z "${TANDEM_TEST_VERBOSE-}" ]] || logs
down

say "stop (what Ctrl-C does) while training"
up_and_training
compose stop -t 30 > "$work/stop.log" 2>&1
for service in worker0 worker1 ps0 ps1; do
  # 137 would be SIGKILL, after SIGTERM had been ignored for 30 s.
  [[ "$(exit_code "$service")" != 137 ]] || { logs; fail "$service ignored SIGTERM"; }
done
down

say "PASSED: trained to the end; ended as a whole when a worker died; stopped; nothing left"
