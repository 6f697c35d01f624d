// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/rounds.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cluster/rendezvous/store_rendezvous.h"
#include "cluster/store/etcd/etcd_store.h"
#include "cluster/store/remote_store.h"
#include "nlohmann/json.hpp"
#include "rpc/channel.h"
#include "rpc/security/job_key.h"

namespace tandem::cli {
namespace {

using cluster::RendezvousState;
using Json = nlohmann::ordered_json;
using tandem::v1::RendezvousMember;

absl::StatusOr<std::unique_ptr<cluster::Store>> Open(const std::string& where, absl::Duration timeout) {
  if (!IsRendezvous(where)) {
    // The launchers meet with their own key, not with the job's.
    TANDEM_ASSIGN_OR_RETURN(rpc::JobKey own, rpc::JobKey::Load());
    TANDEM_ASSIGN_OR_RETURN(
        std::unique_ptr<rpc::Channel> channel,
        rpc::ConnectGrpc(where, {.key = std::make_shared<const rpc::JobKey>(std::move(own))}));
    return std::make_unique<cluster::RemoteStore>(std::move(channel), timeout);
  }
  TANDEM_ASSIGN_OR_RETURN(cluster::EtcdOptions options, cluster::ParseEtcdUrl(where));
  options.read_only = true;
  options.open_timeout = options.call_timeout = timeout;
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<cluster::Store> store,
                          cluster::EtcdStore::Open(std::move(options)));
  return store;
}

const char* PhaseOf(const RendezvousState& state) {
  switch (state.phase()) {
    case RendezvousState::RUNNING:
      return "running";
    case RendezvousState::CLOSED:
      return state.failed() ? "failed" : "ended";
    default:
      return "gathering";
  }
}

// Returns the members of the round in its order, then the waiting members in the order in which they came.
std::vector<const RendezvousMember*> InOrder(const RendezvousState& state) {
  std::vector<const RendezvousMember*> members;
  for (const RendezvousMember& member : state.members()) members.push_back(&member);
  std::sort(members.begin(), members.end(), [](const RendezvousMember* a, const RendezvousMember* b) {
    return a->in_round() != b->in_round() ? a->in_round()
           : a->in_round()                ? a->index() < b->index()
                                          : a->order() < b->order();
  });
  return members;
}

const char* StateOf(const RendezvousMember& member, const RendezvousState& state) {
  if (member.absent()) return "absent";
  if (member.finished()) return "finished";
  if (state.phase() == RendezvousState::CLOSED) return "-";
  if (state.phase() == RendezvousState::RUNNING)
    return member.in_round() ? "in the round" : "waits for a place";
  return member.joined() ? "waits for the round" : "has not come back yet";
}

std::string ProcessesOf(const RendezvousMember& member) {
  return absl::StrJoin(member.node().processes(), ", ", [](std::string* out, const auto& some) {
    absl::StrAppend(out, some.count(), " ", some.role());
  });
}

}  // namespace

std::string JobRounds::store() const {
  if (state.phase() != RendezvousState::RUNNING) return "";
  for (const RendezvousMember& member : state.members()) {
    if (member.in_round() && member.index() == 0) {
      return cluster::RoundStore(member.node().store(), where, state.incarnation(), state.epoch());
    }
  }
  return "";
}

bool IsRendezvous(const std::string& store) {
  return absl::StartsWith(store, "etcd://") || absl::StartsWith(store, "etcds://");
}

absl::StatusOr<JobRounds> AskRounds(const std::string& where, const std::string& run_id,
                                    absl::Duration timeout) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<cluster::Store> store, Open(where, timeout));
  JobRounds job{.where = where, .run_id = run_id};
  if (run_id.empty()) {
    const absl::StatusOr<std::vector<std::string>> runs = cluster::ListRendezvous(store.get());
    if (!runs.ok()) return Annotate(runs.status(), "asking the rendezvous of the job's launchers");
    if (runs->empty()) {
      return absl::NotFoundError(absl::StrCat("no launchers meet at ", where,
                                              ": the job is over, or has another --rdzv-conf etcd_prefix or "
                                              "--rdzv-id (the path is PREFIX/ID)"));
    }
    if (runs->size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("several jobs' launchers meet at ", where,
                       "; choose one with --rdzv-id: ", absl::StrJoin(*runs, ", ")));
    }
    job.run_id = runs->front();
  }
  absl::StatusOr<RendezvousState> state = cluster::ReadRendezvous(store.get(), job.run_id);
  if (!state.ok()) return Annotate(state.status(), absl::StrCat("the rendezvous at ", where));
  job.state = *std::move(state);
  return job;
}

std::string RoundsToText(const JobRounds& job) {
  const RendezvousState& state = job.state;
  std::string text =
      absl::StrCat("Job ", job.run_id, ": ", PhaseOf(state), ", epoch ", state.epoch(), ", ",
                   state.restarts(), " of ", state.max_restarts(), " restarts; ", state.min_nodes(), " to ",
                   state.max_nodes(), " nodes meet at ", job.where, "\n");
  if (!state.reason().empty()) {
    absl::StrAppend(&text, "It has ", state.failed() ? "failed: " : "ended: ", state.reason(), "\n");
  } else if (state.phase() == RendezvousState::GATHERING && !state.ends().empty()) {
    absl::StrAppend(&text, "The last round is over: ", state.ends(state.ends_size() - 1).reason(), "\n");
  }
  const std::vector<const RendezvousMember*> members = InOrder(state);
  size_t id = 4, host = 4, processes = 9;
  for (const RendezvousMember* member : members) {
    id = std::max(id, member->node().id().size());
    host = std::max(host, member->node().host().size());
    processes = std::max(processes, ProcessesOf(*member).size());
  }
  absl::StrAppendFormat(&text, "%5s  %-*s  %-*s  %-*s  %s\n", "INDEX", id, "NODE", host, "HOST", processes,
                        "PROCESSES", "STATE");
  for (const RendezvousMember* member : members) {
    const std::string index = member->in_round() ? absl::StrCat(member->index()) : "-";
    absl::StrAppendFormat(&text, "%5s  %-*s  %-*s  %-*s  %s\n", index, id, member->node().id(), host,
                          member->node().host(), processes, ProcessesOf(*member), StateOf(*member, state));
  }
  for (const RendezvousMember* member : members) {
    if (!member->absent()) continue;
    absl::StrAppend(&text, "Node ", member->node().id(), " ", member->absence(),
                    "; the round goes on, and its launcher takes its place again if it is started\n");
  }
  return text;
}

std::string RoundsToJson(const JobRounds& job) {
  const RendezvousState& state = job.state;
  Json nodes = Json::array();
  for (const RendezvousMember* member : InOrder(state)) {
    Json processes = Json::object();
    for (const auto& some : member->node().processes()) processes[some.role()] = some.count();
    nodes.push_back({{"id", member->node().id()},
                     {"host", member->node().host()},
                     {"store", member->node().store()},
                     {"index", member->in_round() ? member->index() : -1},
                     {"waiting", member->joined()},
                     {"finished", member->finished()},
                     {"absent", member->absent()},
                     {"absence", member->absence()},
                     {"replaceable", member->node().replaceable()},
                     {"processes", processes}});
  }
  const Json json = {{"rendezvous", job.where},
                     {"run_id", job.run_id},
                     {"phase", PhaseOf(state)},
                     {"epoch", state.epoch()},
                     {"restarts", state.restarts()},
                     {"max_restarts", state.max_restarts()},
                     {"min_nodes", state.min_nodes()},
                     {"max_nodes", state.max_nodes()},
                     {"reason", state.reason()},
                     {"exit_code", state.exit_code()},
                     {"nodes", nodes}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tandem::cli
