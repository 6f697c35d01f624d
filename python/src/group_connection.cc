// SPDX-License-Identifier: Apache-2.0
#include "python/src/group_connection.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "cluster/join.h"
#include "cluster/store/store_server.h"
#include "python/src/process.h"
#include "rpc/connect.h"
#include "rpc/network.h"

namespace tandem::python {
namespace {

// Returns where this process serves a group's store; `local`: for ranks of this machine only.
absl::StatusOr<rpc::ListenAddresses> WhereToListen(bool local) {
  if (const char* interface = std::getenv("TANDEM_INTERFACE");
      !local && interface != nullptr && *interface != '\0') {
    TANDEM_ASSIGN_OR_RETURN(const std::string host, rpc::ResolveLocalAddress(interface));
    return rpc::ListenAddresses{.listen = rpc::ListenAddressFor(host, 0)};
  }
  // Under `tandem run` the ranks of one machine have a directory for sockets, and those of several reach each
  // other as they reach the store.
  const char* const job_store = std::getenv("TANDEM_STORE");
  const absl::string_view store = job_store == nullptr ? "" : job_store;
  if (local || !store.empty()) {
    const bool beside = !local || absl::StartsWith(store, "unix:");
    return rpc::ListenBeside(beside ? std::string(store) : "", absl::StrCat("group-", getpid()));
  }
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return absl::UnavailableError("this machine has no name");
  return rpc::ListenAddresses{.listen = rpc::ListenAddressFor(name, 0), .advertise = name};
}

// The servers and channels of this process. In a forked child they leak, because their threads do not exist.
struct Network {
  absl::Mutex mutex;
  uint64_t made ABSL_GUARDED_BY(mutex) = 0;
  // By `local`. Never destroyed: ranks that finish later may still read from them.
  cluster::StoreServer* servers[2] ABSL_GUARDED_BY(mutex) = {};
  std::string addresses[2] ABSL_GUARDED_BY(mutex);
  std::map<std::string, std::weak_ptr<rpc::Channel>> channels ABSL_GUARDED_BY(mutex);

  void ForgetParents() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (made == ForkGeneration()) return;
    made = ForkGeneration();
    servers[0] = servers[1] = nullptr;
    channels.clear();  // weak pointers: nothing is destroyed
  }
};

Network& ThisProcess() {
  static Network* const network = new Network;
  return *network;
}

absl::StatusOr<std::shared_ptr<rpc::Channel>> ChannelTo(const std::string& address) {
  Network& network = ThisProcess();
  absl::MutexLock lock(&network.mutex);
  network.ForgetParents();
  std::weak_ptr<rpc::Channel>& known = network.channels[address];
  if (std::shared_ptr<rpc::Channel> channel = known.lock(); channel != nullptr) return channel;
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> made, cluster::ConnectStore(address));
  std::shared_ptr<rpc::Channel> channel = std::move(made);
  known = channel;
  return channel;
}

}  // namespace

absl::StatusOr<std::string> ServeGroupStore(bool local) {
  Network& network = ThisProcess();
  absl::MutexLock lock(&network.mutex);
  network.ForgetParents();
  std::string& address = network.addresses[local];
  if (network.servers[local] != nullptr) return address;
  TANDEM_ASSIGN_OR_RETURN(const rpc::ListenAddresses where, WhereToListen(local));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<cluster::StoreServer> server,
                          cluster::StoreServer::Start(where.listen));
  TANDEM_ASSIGN_OR_RETURN(address, rpc::AdvertisedAddress(where.listen, where.advertise, server->port()));
  network.servers[local] = server.release();
  return address;
}

absl::StatusOr<GroupConnection> ConnectGroup(const std::string& address,
                                             collectives::ProcessGroupOptions options,
                                             std::shared_ptr<std::atomic<bool>> cancelled) {
  GroupConnection connection;
  options.should_continue = [cancelled] {
    return cancelled->load() ? absl::CancelledError("the wait for the other ranks was interrupted")
                             : absl::OkStatus();
  };
  if (options.world_size > 1) {
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<rpc::Channel> channel, ChannelTo(address));
    connection.store = std::make_unique<cluster::RemoteStore>(std::move(channel),
                                                              std::min(options.timeout, absl::Seconds(30)));
  }
  TANDEM_ASSIGN_OR_RETURN(connection.group, collectives::InitProcessGroup(connection.store.get(), options));
  return connection;
}

}  // namespace tandem::python
