// SPDX-License-Identifier: Apache-2.0
#include "python/src/rpc_node.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/join.h"
#include "cluster/membership/beat.h"
#include "cluster/rendezvous/store_directory.h"
#include "rpc/network.h"
#include "rpc/remote/agent_functions.h"

namespace tandem::python {
namespace {

using rpc::remote::Directory;
using rpc::remote::Member;
using rpc::remote::MemoryDirectory;
using rpc::remote::RpcAgent;
using rpc::remote::RpcAgentOptions;

// Tells another process that the caller leaves. Not counted as a call of the application.
constexpr rpc::remote::Function<void(std::string)> kLeave{"tandem.directory.leave"};
constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);

// The processes of a list of addresses. Nobody watches them: a process that leaves tells the others.
class AddressList : public MemoryDirectory {
 public:
  // `leave` is called once, when the process `name` unregisters.
  AddressList(std::string name, std::function<void()> leave)
      : name_(std::move(name)), leave_(std::move(leave)) {}
  absl::Status Unregister(const Member& member) override {
    if (member.name == name_ && leave_ != nullptr) std::exchange(leave_, nullptr)();
    return MemoryDirectory::Unregister(member);
  }

 private:
  const std::string name_;
  std::function<void()> leave_;
};

// Tells all others that `agent` leaves. Blocks for at most kLeaveTimeout.
void TellOthers(RpcAgent& agent) {
  std::vector<rpc::remote::Future<void>> told;
  for (const auto& [name, member] : agent.directory().List()) {
    if (name != agent.name())
      told.push_back(agent.RpcAsync({name, {.timeout = kLeaveTimeout}}, kLeave, agent.name()));
  }
  // A process that does not answer is gone, or finds out by its own calls.
  (void)rpc::remote::WaitAll(told);
}

// Waits until the processes of a list of addresses answer.
absl::Status AwaitPeers(RpcAgent& agent, const std::vector<std::string>& names, absl::Time deadline) {
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    // Idempotent: it is repeated until somebody listens there.
    const absl::Duration left = std::max(deadline - MonotonicNow(), absl::Milliseconds(100));
    const auto state = agent.RpcSync({name, {.timeout = left}}, rpc::remote::kAgentState);
    if (state.ok()) continue;
    if (!absl::IsDeadlineExceeded(state.status()) && !absl::IsUnavailable(state.status()))
      return state.status();
    missing.push_back(absl::StrCat(name, " (", agent.directory().Find(name).value_or(Member()).address, ")"));
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(agent.name(), " cannot start: no answer of ", absl::StrJoin(missing, ", "),
                   ": have they called tandem.rpc.start()? wait_for=[] waits for nobody"));
}

// Publishes this rank's name and returns the names of all ranks.
absl::StatusOr<std::vector<std::string>> ExchangeNames(cluster::Store& store, const RpcNodeOptions& options,
                                                       absl::Time deadline) {
  const auto key = [&](int rank) { return absl::StrCat(options.prefix, "/rank/", rank); };
  TANDEM_RETURN_IF_ERROR(store.Set(key(options.rank), options.name));
  std::vector<std::string> names;
  std::vector<int> missing;
  for (int rank = 0; rank < options.world_size; ++rank) {
    absl::StatusOr<std::string> name =
        store.Get(key(rank), std::max(deadline - MonotonicNow(), absl::Milliseconds(1)));
    if (absl::IsDeadlineExceeded(name.status())) {
      missing.push_back(rank);
    } else if (!name.ok()) {
      return Annotate(name.status(), absl::StrCat(options.name, " cannot start"));
    } else {
      names.push_back(*std::move(name));
    }
  }
  if (missing.empty()) return names;
  return absl::DeadlineExceededError(
      absl::StrCat(options.name, " cannot start: rank ", absl::StrJoin(missing, ", "), " of ",
                   options.world_size, " did not call tandem.rpc.start() within ",
                   absl::FormatDuration(options.start_timeout), "; wait_for=[] waits for nobody"));
}

absl::Status ListenNear(const std::string& store, RpcAgentOptions* agent) {
  if (const char* interface = std::getenv("TANDEM_INTERFACE"); interface != nullptr && *interface != '\0') {
    TANDEM_ASSIGN_OR_RETURN(agent->advertise, rpc::ResolveLocalAddress(interface));
    agent->listen = rpc::ListenAddressFor(agent->advertise, 0);
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(rpc::ListenAddresses beside,
                          rpc::ListenBeside(store, absl::StrCat("functions-", getpid())));
  agent->listen = std::move(beside.listen);
  agent->advertise = std::move(beside.advertise);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcNode>> RpcNode::Start(RpcNodeOptions options,
                                                        std::unique_ptr<rpc::remote::UntypedFunctions> names,
                                                        rpc::remote::Functions functions) {
  cluster::StartBeat();
  const absl::Time deadline = MonotonicNow() + options.start_timeout;
  auto node = std::make_unique<RpcNode>();
  node->names = std::move(names);
  if (!options.caller.member.empty()) {
    TANDEM_ASSIGN_OR_RETURN(node->job, JobMember::Get(options.start_timeout));
    options.caller = (*node->job)->env().caller();
  }
  RpcAgentOptions agent{
      .name = options.name,
      .transport = options.transport,
      .threads = options.threads,
      .call_timeout = options.call_timeout,
      .wait_for = options.wait_for,
      .start_timeout = options.start_timeout,
      // A thread cannot be made to leave a Python function, so a long wait would be in vain.
      .abrupt_timeout = absl::Seconds(1),
      .caller = options.caller};
  if (!options.store.empty()) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel,
                            cluster::ConnectStore(options.store, options.caller));
    node->store = std::make_unique<cluster::RemoteStore>(std::move(channel),
                                                         std::min(options.start_timeout, absl::Seconds(30)));
    TANDEM_RETURN_IF_ERROR(ListenNear(options.store, &agent));
    TANDEM_ASSIGN_OR_RETURN(node->directory,
                            cluster::StoreDirectory::Open(node->store.get(), {.prefix = options.prefix}));
    if (options.world_size > 0) {
      TANDEM_ASSIGN_OR_RETURN(agent.wait_for, ExchangeNames(*node->store, options, deadline));
    }
  } else {
    auto directory = std::make_unique<AddressList>(options.name, [self = node.get()] {
      if (self->agent != nullptr) TellOthers(*self->agent);
    });
    functions.Add(kLeave, [list = directory.get()](const std::string& name) { list->Forget(name); });
    for (const auto& [name, address] : options.peers) {
      if (name == options.name) {
        agent.listen = address;
      } else {
        // Incarnation 0: any process at that address is the right one.
        TANDEM_RETURN_IF_ERROR(directory->Register({.name = name, .address = address}));
      }
    }
    node->directory = std::move(directory);
  }
  if (!options.listen.empty()) {
    agent.listen = options.listen;
    agent.advertise = "";
  }
  agent.start_timeout = std::max(deadline - MonotonicNow(), absl::Milliseconds(1));
  TANDEM_ASSIGN_OR_RETURN(node->agent,
                          RpcAgent::Start(std::move(agent), node->directory.get(), std::move(functions)));
  if (options.store.empty()) TANDEM_RETURN_IF_ERROR(AwaitPeers(*node->agent, options.wait_for, deadline));
  if (node->job != nullptr) (*node->job)->SetServing(true);
  return node;
}

}  // namespace tandem::python
