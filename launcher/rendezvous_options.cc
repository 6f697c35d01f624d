// SPDX-License-Identifier: Apache-2.0
#include "launcher/rendezvous_options.h"

#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace tandem::launcher {
namespace {

constexpr int kStaticPort = 29500;   // torchrun's --master-port
constexpr int kDynamicPort = 29400;  // torchrun's port of the c10d rendezvous
constexpr int kEtcdPort = 2379;

absl::Status SetDuration(absl::string_view key, const std::string& value, absl::Duration* duration) {
  double seconds;
  if (!absl::SimpleAtod(value, &seconds) || !(seconds > 0) || seconds > 1e9) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rdzv-conf ", key, "='", value, "': expected a number of seconds above 0"));
  }
  *duration = absl::Seconds(seconds);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadRendezvousConf(absl::string_view text, RendezvousHandlerOptions* options) {
  cluster::RendezvousOptions& rendezvous = options->rendezvous;
  absl::Duration interval = absl::ZeroDuration();
  int attempts = 3;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    const auto& [key, value] = pair;
    if (key == "join_timeout" || key == "timeout") {
      TANDEM_RETURN_IF_ERROR(SetDuration(key, value, &rendezvous.join_timeout));
    } else if (key == "last_call_timeout") {
      TANDEM_RETURN_IF_ERROR(SetDuration(key, value, &rendezvous.last_call));
    } else if (key == "close_timeout") {
      TANDEM_RETURN_IF_ERROR(SetDuration(key, value, &rendezvous.close_timeout));
    } else if (key == "lease") {
      TANDEM_RETURN_IF_ERROR(SetDuration(key, value, &rendezvous.lease));
    } else if (key == "keep_alive_interval") {
      TANDEM_RETURN_IF_ERROR(SetDuration(key, value, &interval));
    } else if (key == "keep_alive_max_attempt") {
      if (!absl::SimpleAtoi(value, &attempts) || attempts < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("--rdzv-conf ", key, "='", value, "': expected a number of at least 1"));
      }
    } else if (key == "etcd_lease") {
      absl::Duration lease;
      TANDEM_RETURN_IF_ERROR(SetDuration(key, value, &lease));
      if (lease < absl::Seconds(1)) {
        return absl::InvalidArgumentError(
            absl::StrCat("--rdzv-conf ", key, "='", value, "': etcd grants leases of at least 1 second"));
      }
      options->conf[key] = value;
    } else if (key == "rank") {
      if (!absl::SimpleAtoi(value, &options->node_rank) || options->node_rank < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("--rdzv-conf rank='", value, "' is no place of a node"));
      }
    } else if (key == "read_timeout" || (key == "store_type" && value == "tcp")) {
      // torchrun's stores have these options; Tandem's do not need them.
    } else if (absl::c_linear_search(std::vector<absl::string_view>{"is_host", "cacert", "cert", "key",
                                                                    "protocol", "etcd_prefix"},
                                     key)) {
      options->conf[key] = value;
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "--rdzv-conf '", part, "' is not known; expected key=value,... of ", kRendezvousConfKeys));
    }
  }
  if (interval > absl::ZeroDuration()) rendezvous.lease = interval * attempts;
  return absl::OkStatus();
}

absl::Status ParseNodes(absl::string_view text, int* min_nodes, int* max_nodes) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  bool good = parts.size() <= 2 && absl::SimpleAtoi(parts[0], min_nodes);
  *max_nodes = *min_nodes;
  if (good && parts.size() == 2) good = absl::SimpleAtoi(parts[1], max_nodes);
  if (good && *min_nodes >= 1 && *max_nodes >= *min_nodes && *max_nodes <= 4096) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--nnodes '", text, "': expected N or MIN:MAX, with 1 <= MIN <= MAX <= 4096"));
}

absl::StatusOr<RendezvousHandlerOptions> MakeRendezvousOptions(const RunFlags& flags, int max_restarts) {
  // First, because a mistyped name must not be blamed for what else it lacks. RendezvousHandler says what to
  // use instead of torchrun's older ones.
  constexpr absl::string_view kBackends[] = {"", "static", "c10d", "etcd", "etcd-v2", "zeus"};
  if (!absl::c_linear_search(kBackends, flags.rdzv_backend)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rdzv-backend ", flags.rdzv_backend, " is not known: expected static, c10d or etcd"));
  }
  RendezvousHandlerOptions options;
  cluster::RendezvousOptions& rendezvous = options.rendezvous;
  if (!flags.nnodes.empty() && !flags.standalone) {
    TANDEM_RETURN_IF_ERROR(ParseNodes(flags.nnodes, &rendezvous.min_nodes, &rendezvous.max_nodes));
  }
  rendezvous.max_restarts = max_restarts;
  options.node_rank = flags.node_rank;
  TANDEM_RETURN_IF_ERROR(ReadRendezvousConf(flags.rdzv_conf, &options));
  options.local_addr = flags.local_addr;
  options.master_addr = flags.master_addr;
  const bool etcd = absl::StartsWith(flags.rdzv_backend, "etcd");
  options.job_store_in_etcd = flags.job_store == "etcd";
  if (options.job_store_in_etcd && (!etcd || flags.standalone)) {
    return absl::InvalidArgumentError(
        "--job-store etcd keeps the job's store where the nodes meet, which must be etcd: give "
        "--rdzv-backend "
        "etcd and --rdzv-endpoint HOST:PORT, too");
  }
  if (flags.standalone || (rendezvous.max_nodes == 1 && !etcd)) {
    if (!flags.rdzv_backend.empty() && flags.rdzv_backend != "static" && flags.rdzv_backend != "c10d") {
      return absl::InvalidArgumentError(absl::StrCat("--rdzv-backend ", flags.rdzv_backend,
                                                     " is not known: expected static, c10d or etcd"));
    }
    rendezvous.min_nodes = rendezvous.max_nodes = 1;
    options.node_rank = -1;
    return options;
  }
  options.backend = flags.rdzv_backend.empty() ? "static" : flags.rdzv_backend;
  options.endpoint = flags.rdzv_endpoint;
  if (options.endpoint.empty() && !flags.master_addr.empty() && options.backend != "etcd") {
    options.endpoint =
        absl::StrCat(flags.master_addr, ":", flags.master_port > 0 ? flags.master_port : kStaticPort);
  }
  if (!options.endpoint.empty() && !absl::StrContains(options.endpoint, ':')) {
    absl::StrAppend(&options.endpoint, ":", etcd ? kEtcdPort : kDynamicPort);
  }
  if (options.backend == "static") {
    if (rendezvous.min_nodes != rendezvous.max_nodes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--nnodes ", flags.nnodes, " needs nodes that may come and go: --rdzv-backend c10d or etcd"));
    }
    if (options.node_rank < 0) {
      return absl::InvalidArgumentError(
          "--node-rank is missing: with --rdzv-backend static every node is told its place, and node 0 "
          "serves the store; or give --rdzv-backend c10d");
    }
    if (options.endpoint.empty()) {
      return absl::InvalidArgumentError(
          "--master-addr HOST or --rdzv-endpoint HOST:PORT of node 0 is missing");
    }
  }
  if (options.node_rank >= rendezvous.max_nodes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--node-rank ", options.node_rank, " is out of range: there are ", rendezvous.max_nodes, " nodes"));
  }
  return options;
}

}  // namespace tandem::launcher
