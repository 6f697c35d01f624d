// SPDX-License-Identifier: Apache-2.0
#include "launcher/rendezvous_handler.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/wait_log.h"
#include "cluster/join.h"
#include "cluster/store/etcd/etcd_store.h"
#include "cluster/store/remote_store.h"
#include "launcher/local_rendezvous.h"
#include "rpc/address.h"
#include "rpc/channel.h"
#include "rpc/network.h"

namespace tandem::launcher {
namespace {

// How long the launcher that serves the store waits for the others to learn that the job is over.
constexpr absl::Duration kShutdownNotice = absl::Seconds(5);

constexpr absl::Duration kTryAgain = absl::Milliseconds(200);  // of a store that takes no change

template <typename T>
absl::StatusOr<T> Annotated(absl::StatusOr<T> result, absl::string_view context) {
  if (!result.ok()) return Annotate(result.status(), context);
  return result;
}

// Returns the timeout of one call to the store. A call should fail within a lease, as the rendezvous
// requires, and the end of the job should not wait longer than close_timeout for a store that does not
// respond.
absl::Duration CallTimeout(const cluster::RendezvousOptions& options) {
  return std::min(options.lease, options.close_timeout);
}

std::string GoneKey(const std::string& run_id, const std::string& node) {
  return absl::StrCat("launchers/", run_id, "/gone/", node);
}

std::string WorkersEndedKey(const std::string& run_id, int64_t epoch, const std::string& node) {
  return absl::StrCat("launchers/", run_id, "/workers-ended/", epoch, "/", node);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RendezvousHandler>> RendezvousHandler::Open(
    const RendezvousHandlerOptions& options) {
  std::unique_ptr<RendezvousHandler> handler(new RendezvousHandler(options));
  if (handler->alone()) {
    if (!options.local_addr.empty()) handler->host_ = options.local_addr;
    handler->rendezvous_ = std::make_unique<LocalRendezvous>(options.rendezvous.max_restarts);
    return handler;
  }
  TANDEM_RETURN_IF_ERROR(handler->OpenStore());
  TANDEM_ASSIGN_OR_RETURN(handler->rendezvous_,
                          cluster::MakeRendezvous(handler->store(), options.rendezvous));
  return handler;
}

RendezvousHandler::~RendezvousHandler() = default;

absl::Status RendezvousHandler::OpenStore() {
  if (options_.backend == "etcd-v2" || options_.backend == "zeus") {
    return absl::InvalidArgumentError(
        absl::StrCat("--rdzv-backend ", options_.backend,
                     " is not there: etcd's second API is gone; use --rdzv-backend etcd, which speaks the "
                     "third, with the same --rdzv-endpoint"));
  }
  if (options_.endpoint.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--rdzv-endpoint HOST:PORT is missing: where do the nodes meet? (", options_.backend, ")"));
  }
  // etcd may have several members; this node's address is the one that leads to the first.
  const std::string first = options_.endpoint.substr(0, options_.endpoint.find(','));
  TANDEM_ASSIGN_OR_RETURN(const rpc::Address endpoint,
                          Annotated(rpc::ParseAddress(first), "--rdzv-endpoint"));
  if (!options_.local_addr.empty()) {
    host_ = options_.local_addr;
  } else {
    host_ = options_.route_addr;
    if (host_.empty()) {
      TANDEM_ASSIGN_OR_RETURN(host_, rpc::LocalAddressFor(first));
    }
    // A host's own name often means 127.0.1.1 on itself, where no other host finds it: then the address that
    // leads out (nothing is sent there, the network is reserved for examples).
    if (rpc::IsLoopbackHost(host_) && !rpc::IsLoopbackHost(endpoint.host)) {
      host_ = rpc::LocalAddressFor("192.0.2.1:9").value_or(host_);
    }
  }
  if (options_.backend == "static" || options_.backend == "c10d") return OpenServed();
  if (options_.backend == "etcd") return OpenEtcd();
  return absl::InvalidArgumentError(
      absl::StrCat("--rdzv-backend ", options_.backend, " is not known: expected static, c10d or etcd"));
}

absl::Status RendezvousHandler::OpenEtcd() {
  const auto conf = [this](const char* name) {
    const auto it = options_.conf.find(name);
    return it == options_.conf.end() ? std::string() : it->second;
  };
  std::vector<std::string> query;
  const std::pair<const char*, const char*> queries[] = {
      {"cacert", "ca"}, {"cert", "cert"}, {"key", "key"}, {"etcd_lease", "lease"}};
  for (const auto& [theirs, ours] : queries) {
    if (!conf(theirs).empty()) query.push_back(absl::StrCat(ours, "=", conf(theirs)));
  }
  const std::string prefix = conf("etcd_prefix").empty() ? "tandem" : conf("etcd_prefix");
  const absl::string_view bare = absl::StripPrefix(absl::StripSuffix(prefix, "/"), "/");
  address_ =
      absl::StrCat(conf("protocol") == "https" ? "etcds://" : "etcd://", options_.endpoint, "/", bare, "/",
                   options_.rendezvous.run_id, query.empty() ? "" : "?", absl::StrJoin(query, "&"));
  TANDEM_ASSIGN_OR_RETURN(cluster::EtcdOptions etcd,
                          Annotated(cluster::ParseEtcdUrl(address_), "--rdzv-endpoint or --rdzv-conf"));
  etcd.call_timeout = CallTimeout(options_.rendezvous);
  TANDEM_ASSIGN_OR_RETURN(store_, cluster::EtcdStore::Open(std::move(etcd)));
  return absl::OkStatus();
}

absl::Status RendezvousHandler::OpenServed() {
  TANDEM_ASSIGN_OR_RETURN(const rpc::Address endpoint, rpc::ParseAddress(options_.endpoint));
  address_ = options_.endpoint;
  if (endpoint.port == 0) {
    return absl::InvalidArgumentError(
        "--rdzv-endpoint: with port 0 the other nodes could not know which the kernel picks; choose one, or "
        "serve the store apart: `tandem store --listen 0.0.0.0:0` says its address");
  }
  bool must = options_.backend == "static" && options_.node_rank == 0,
       may = must || options_.backend == "c10d";
  if (const auto it = options_.conf.find("is_host"); it != options_.conf.end()) {
    if (it->second != "true" && it->second != "false" && it->second != "1" && it->second != "0") {
      return absl::InvalidArgumentError(
          absl::StrCat("--rdzv-conf is_host='", it->second, "': expected true or false"));
    }
    must = may = it->second == "true" || it->second == "1";
  }
  // A launcher that can bind the endpoint's address runs on its host. Other nodes may not be able to reach
  // that address (a host's own name often resolves to 127.0.1.1); then all interfaces are served.
  if (may && (must || rpc::CheckBindable(endpoint, options_.endpoint).ok())) {
    const std::string listen = rpc::IsLoopbackHost(endpoint.host)
                                   ? options_.endpoint
                                   : rpc::ListenAddressFor(endpoint.host, endpoint.port);
    absl::StatusOr<std::unique_ptr<cluster::StoreServer>> server = cluster::StoreServer::Start(listen);
    if (server.ok()) {
      server_ = *std::move(server);
      return absl::OkStatus();
    }
    // Another launcher of this host was quicker and serves the store.
    if (must) return Annotate(server.status(), "cannot serve the store at which the nodes meet");
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, cluster::ConnectStore(options_.endpoint));
  store_ = std::make_unique<cluster::RemoteStore>(std::move(channel), CallTimeout(options_.rendezvous));
  return absl::OkStatus();
}

absl::Status RendezvousHandler::Reach(const std::function<bool()>& stop) {
  if (alone() || server_ != nullptr) return absl::OkStatus();
  absl::Time since = MonotonicNow(), say_at = since;
  bool was_full = false;
  while (true) {
    // A change, since a store whose disk is full can still be read. If the store cannot be reached, the call
    // blocks for up to a lease.
    const absl::Status reached = store_->Set("launchers", "");
    if (reached.ok()) {
      reached_ = true;
      return absl::OkStatus();
    }
    const bool full = absl::IsResourceExhausted(reached);
    if (reached_ && !full && options_.backend != "etcd") {
      return Annotate(
          reached,
          absl::StrCat(
              "the node that served the job's store at ", options_.endpoint,
              " has died or is cut off, and the job's state with it; with --rdzv-backend etcd any node may"));
    }
    if (stop()) return absl::CancelledError("it was stopped while it waited");
    if (!full && !absl::IsUnavailable(reached) && !absl::IsDeadlineExceeded(reached)) return reached;
    const absl::Time now = MonotonicNow();
    if (full != std::exchange(was_full, full)) since = say_at = now;
    const absl::Duration patience = full ? std::min(options_.full_timeout, options_.rendezvous.join_timeout)
                                         : options_.rendezvous.join_timeout;
    if (now >= since + patience && full) {
      return absl::ResourceExhaustedError(absl::StrCat(
          ToString(), " has taken no change for ", absl::FormatDuration(patience), ": ", reached.message(),
          "; make room on its disk, or raise its limits, and start the job again"));
    }
    if (now >= since + patience) {
      return absl::UnavailableError(absl::StrCat("cannot reach ", ToString(), " within ",
                                                 absl::FormatDuration(options_.rendezvous.join_timeout),
                                                 ": does the host's launcher run, does the name lead to it, "
                                                 "does a firewall stand before the port? (",
                                                 reached.message(), ")"));
    }
    if (now >= say_at) {
      LogWarning(full ? absl::StrCat(ToString(), " takes no change; trying again for ",
                                     absl::FormatDuration(patience), ": ", reached.message())
                      : absl::StrCat("waiting for ", ToString(), ", at most ", absl::FormatDuration(patience),
                                     " (--rdzv-conf join_timeout): ", reached.message()));
      say_at = now + kLogWaitsEvery;
    }
    if (full) absl::SleepFor(kTryAgain);
  }
}

std::string RendezvousHandler::NodesText() const {
  const int least = options_.rendezvous.min_nodes, most = options_.rendezvous.max_nodes;
  return least == most ? absl::StrCat(most, " nodes") : absl::StrCat(least, " to ", most, " nodes");
}

std::string RendezvousHandler::ToString() const {
  if (alone()) return "this launcher's memory";
  return absl::StrCat(options_.backend == "etcd" ? "etcd at " : "the store of the nodes at ",
                      options_.endpoint);
}

void RendezvousHandler::SendWorkersEnded(const cluster::Round& round, absl::string_view outcome) {
  if (alone()) return;
  const cluster::Node& self = round.nodes[static_cast<size_t>(round.group_rank)];
  // After an error the others wait for their grace period only.
  store()->Set(WorkersEndedKey(options_.rendezvous.run_id, round.epoch, self.id), outcome).IgnoreError();
}

absl::StatusOr<std::vector<std::string>> RendezvousHandler::AwaitWorkersEnded(
    int64_t epoch, const std::vector<std::string>& nodes, absl::Duration timeout) {
  if (alone() || nodes.empty()) return std::vector<std::string>();
  std::vector<std::string> keys;
  for (const std::string& node : nodes) {
    keys.push_back(WorkersEndedKey(options_.rendezvous.run_id, epoch, node));
  }
  return store()->MultiGet(keys, timeout);
}

void RendezvousHandler::SendShutdownNotice(const cluster::Round& round) {
  if (alone() || options_.backend == "etcd" || round.nodes.empty()) return;
  const std::string& run_id = options_.rendezvous.run_id;
  const size_t self = static_cast<size_t>(round.group_rank);
  if (server_ == nullptr) {
    // An error means that the store is gone, and then no launcher waits for this key.
    store_->Set(GoneKey(run_id, round.nodes[self].id), "").IgnoreError();
    return;
  }
  std::vector<std::string> others;
  for (size_t i = 0; i < round.nodes.size(); ++i) {
    const bool absent = absl::c_linear_search(round.absent, static_cast<int>(i));
    if (i != self && !absent) others.push_back(GoneKey(run_id, round.nodes[i].id));
  }
  // A launcher that has died does not set its key, so a timeout is no error.
  if (!others.empty()) server_->store()->Wait(others, kShutdownNotice).IgnoreError();
}

}  // namespace tandem::launcher
