// SPDX-License-Identifier: Apache-2.0
#include "collectives/connect/connect.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ipc/host_identity.h"
#include "base/logging.h"
#include "base/status.h"
#include "cluster/store/memory_store.h"
#include "cluster/store/prefix_store.h"
#include "collectives/connect/backend_choice.h"
#include "collectives/connect/rank_exchange.h"
#include "collectives/connect/solo_backend.h"
#include "collectives/diagnostics/checked_backend.h"
#include "rpc/network.h"

namespace tandem::collectives {
namespace {

// Connects one group, step by step.
class Connector {
 public:
  Connector(cluster::Store* store, const GroupConnectOptions& options,
            const std::vector<BackendFactory>& factories, absl::Time deadline)
      : root_(store),
        store_(store, absl::StrCat("pg/", options.group)),
        options_(options),
        factories_(factories),
        deadline_(deadline) {}

  absl::Status FindPeers() {
    RankInfo me;
    me.rank = options_.rank;
    me.world_size = options_.world_size;
    me.machine = ipc::HostIdentity();
    me.self.host = options_.host.empty() ? me.machine : options_.host;
    me.self.pid = ::getpid();
    if (options_.interface_address.empty()) {
      TANDEM_ASSIGN_OR_RETURN(me.self.address, rpc::LocalAddressFor(root_->address()));
    } else {
      TANDEM_ASSIGN_OR_RETURN(me.self.address, rpc::ResolveLocalAddress(options_.interface_address));
    }
    me.backend = options_.backend;
    me.debug = options_.debug;
    me.members = options_.members;
    TANDEM_ASSIGN_OR_RETURN(connection_.peers, ExchangeRankInfo(&store_, me, deadline_, options_.timeout));
    return absl::OkStatus();
  }

  absl::Status ConnectDevice(const BackendRequest& request) {
    Connection::Device device;
    device.kind = request.device;
    TANDEM_RETURN_IF_ERROR(ConnectOne(request.name, "", &device));
    const BackendFactory* factory = FindBackend(device.backend, factories_);
    if (options_.check_fingerprints && !factory->compares_fingerprints) {
      Connection::Device control;
      TANDEM_RETURN_IF_ERROR(ConnectOne("auto", absl::StrCat("check ", device.backend, "/"), &control));
      for (std::unique_ptr<cluster::Store>& store : control.stores) device.stores.push_back(std::move(store));
      device.made = std::make_unique<CheckedBackend>(options_.group, options_.rank, options_.world_size,
                                                     std::move(device.made), std::move(control.made));
    }
    connection_.devices.push_back(std::move(device));
    return absl::OkStatus();
  }

  Connection Take() { return std::move(connection_); }

 private:
  // Fills in *device. `purpose` separates its keys from those of a backend of the same name.
  absl::Status ConnectOne(const std::string& name, const std::string& purpose, Connection::Device* device) {
    if (name != "auto") return Try(name, purpose, deadline_, device);
    const std::vector<std::string> candidates = AutoCandidates(connection_.peers);
    std::string reasons;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const bool last = i + 1 == candidates.size();
      // Some time is left for the next candidate, in case this one hangs.
      const absl::Time now = MonotonicNow();
      const absl::Status status =
          Try(candidates[i], purpose, last ? deadline_ : now + (deadline_ - now) / 2, device);
      if (status.ok()) return status;
      // Another backend would not resolve this error.
      if (last || absl::IsInvalidArgument(status)) {
        return reasons.empty() ? status : Annotate(status, absl::StrCat("(after ", reasons, ")"));
      }
      reasons = absl::StrCat(candidates[i], " failed: ", status.message());
      if (options_.rank == 0) {
        LogWarning(absl::StrCat("process group '", options_.group, "': backend ", candidates[i],
                                " cannot be used (", status.message(), "); all ranks take ",
                                candidates[i + 1]));
      }
    }
    return absl::OkStatus();
  }

  // Connects all ranks or none.
  absl::Status Try(const std::string& name, const std::string& purpose, absl::Time deadline,
                   Connection::Device* device) {
    const BackendFactory* factory = FindBackend(name, factories_);
    // A view of root_, which outlives this object; store_ does not.
    auto store = std::make_unique<cluster::PrefixStore>(
        root_, absl::StrCat("pg/", options_.group, "/", purpose, name));
    BackendOptions options;
    options.group = options_.group;
    options.rank = options_.rank;
    options.world_size = options_.world_size;
    options.store = store.get();
    options.peers = connection_.peers;
    options.deadline = deadline;
    options.timeout = options_.timeout;
    absl::Status mine = absl::FailedPreconditionError(absl::StrCat("this build has no backend '", name, "'"));
    if (factory != nullptr) mine = factory->viable ? factory->viable(options) : absl::OkStatus();
    TANDEM_RETURN_IF_ERROR(AgreeOnStatus(&store_, absl::StrCat(purpose, "viable/", name), options_.rank,
                                         options_.world_size, mine, deadline));
    absl::StatusOr<std::unique_ptr<Backend>> made = factory->make(options);
    // Ranks that have connected wait for the others, even if these use all the time there is.
    const absl::Status agreed = AgreeOnStatus(&store_, absl::StrCat(purpose, "made/", name), options_.rank,
                                              options_.world_size, made.status(), deadline + kGrace);
    if (!agreed.ok()) {
      if (made.ok()) (*made)->Abort(agreed);
      // This rank's own error is more useful here than another rank's.
      return made.ok() ? agreed : made.status();
    }
    device->backend = name;
    device->made = *std::move(made);
    device->stores.push_back(std::move(store));
    return absl::OkStatus();
  }

  static constexpr absl::Duration kGrace = absl::Seconds(2);

  cluster::Store* const root_;
  cluster::PrefixStore store_;
  const GroupConnectOptions& options_;
  const std::vector<BackendFactory>& factories_;
  const absl::Time deadline_;
  Connection connection_;
};

}  // namespace

absl::StatusOr<Connection> Connect(cluster::Store* store, const GroupConnectOptions& options) {
  std::vector<BackendFactory> factories(options.extra_backends.begin(), options.extra_backends.end());
  for (BackendFactory& factory : BuiltInBackends()) factories.push_back(std::move(factory));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<BackendRequest> requests,
                          ParseBackends(options.backend, factories));
  const absl::Time deadline = MonotonicNow() + options.timeout;
  if (options.world_size > 1) {
    Connector connector(store, options, factories, deadline);
    TANDEM_RETURN_IF_ERROR(connector.FindPeers());
    for (const BackendRequest& request : requests) TANDEM_RETURN_IF_ERROR(connector.ConnectDevice(request));
    return connector.Take();
  }
  Connection alone;
  alone.peers.push_back({options.host.empty() ? ipc::HostIdentity() : options.host, "127.0.0.1", ::getpid()});
  for (const BackendRequest& request : requests) {
    Connection::Device one;
    one.kind = request.device;
    // Memory of another device, and a program's own backend, are served by their backend even in a world of
    // one.
    if (request.device == Device::Kind::kCpu &&
        FindBackend(request.name, options.extra_backends) == nullptr) {
      one.backend = "solo";
      one.made = MakeSoloBackend();
    } else {
      const BackendFactory* factory = FindBackend(request.name, factories);
      one.backend = request.name;
      one.stores.push_back(std::make_unique<cluster::MemoryStore>());
      BackendOptions backend{options.group,  0, 1, one.stores[0].get(), alone.peers, deadline,
                             options.timeout};
      if (factory->viable) TANDEM_RETURN_IF_ERROR(factory->viable(backend));
      TANDEM_ASSIGN_OR_RETURN(one.made, factory->make(backend));
    }
    alone.devices.push_back(std::move(one));
  }
  return alone;
}

}  // namespace tandem::collectives
