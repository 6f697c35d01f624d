// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/suggest.h"
#include "cluster/membership/beat.h"
#include "cluster/store/fenced_store.h"
#include "cluster/store/prefix_store.h"
#include "cluster/store_url.h"
#include "collectives/group/group.h"
#include "collectives/group/peer_failure.h"

namespace tandem::collectives {
namespace {

std::string FromEnv(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Completes the options with the environment.
absl::Status Complete(ProcessGroupOptions* o) {
  if (o->backend.empty()) o->backend = FromEnv("TANDEM_BACKEND");
  if (o->backend.empty()) o->backend = "auto";
  if (o->interface_address.empty()) o->interface_address = FromEnv("TANDEM_INTERFACE");
  if (o->host.empty()) o->host = FromEnv("TANDEM_HOST");
  if (o->debug == DebugLevel::kFromEnv) {
    const std::string level = absl::AsciiStrToUpper(FromEnv("TANDEM_DEBUG"));
    constexpr absl::string_view kLevels[] = {"OFF", "INFO", "DETAIL"};
    if (level.empty() || level == "OFF") {
      o->debug = DebugLevel::kOff;
    } else if (level == "INFO") {
      o->debug = DebugLevel::kInfo;
    } else if (level == "DETAIL") {
      o->debug = DebugLevel::kDetail;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("TANDEM_DEBUG='", level, "' is no debug level", DidYouMean(level, kLevels)));
    }
  }
  return absl::OkStatus();
}

absl::Status Validate(const ProcessGroupOptions& o) {
  if (o.world_size < 1 || o.rank < 0 || o.rank >= o.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", o.rank, " of a world of ", o.world_size,
                                                   ": ranks go from 0 to the world's size less one"));
  }
  if (!o.global_ranks.empty() && o.global_ranks.size() != static_cast<size_t>(o.world_size)) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", o.global_ranks.size(),
                                                   " global ranks for a world of ", o.world_size,
                                                   "; give one for each rank"));
  }
  if (o.name.empty() || o.name.size() > 200) {
    return absl::InvalidArgumentError("a group's name must have 1 to 200 bytes");
  }
  if (o.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a group's timeout must be positive, not ", absl::FormatDuration(o.timeout)));
  }
  for (const std::string* text : {&o.backend, &o.interface_address, &o.host}) {
    if (text->find('\n') == text->npos) continue;
    return absl::InvalidArgumentError("a backend, interface or host is a name of one line");
  }
  return absl::OkStatus();
}

// Separates the keys of epochs that share a store.
struct EpochKeys {
  EpochKeys(std::shared_ptr<cluster::Store> all, int64_t epoch)
      : base(std::move(all)), part(base.get(), absl::StrCat("epoch/", epoch)) {}
  const std::shared_ptr<cluster::Store> base;
  cluster::PrefixStore part;
};

absl::StatusOr<std::unique_ptr<ProcessGroup>> Init(std::shared_ptr<cluster::Store> store,
                                                   const ProcessGroupOptions& options) {
  cluster::StartBeat();
  const std::string context = absl::StrCat("process group '", options.name, "'");
  Group::Parts parts;
  parts.options = options;
  parts.error_file = ErrorFileFromEnv();
  ForgetFailure(parts.error_file);
  TANDEM_RETURN_IF_ERROR(Annotate(Complete(&parts.options), context));
  TANDEM_RETURN_IF_ERROR(Annotate(Validate(parts.options), context));
  if (store == nullptr && options.world_size > 1) {
    return absl::InvalidArgumentError(absl::StrCat(context, ": there is no store to meet in"));
  }
  if (store != nullptr && (options.epoch > 0 || options.should_continue)) {
    const std::string who = absl::StrCat("worker/", options.rank);
    if (options.epoch > 0)
      TANDEM_RETURN_IF_ERROR(Annotate(cluster::EnterEpoch(store.get(), options.epoch, who), context));
    store =
        std::make_shared<cluster::FencedStore>(std::move(store), options.epoch, who, options.should_continue);
    if (options.epoch > 0) {
      auto keys = std::make_shared<EpochKeys>(std::move(store), options.epoch);
      store = std::shared_ptr<cluster::Store>(keys, &keys->part);
    }
  }
  parts.global_ranks = options.global_ranks;
  if (parts.global_ranks.empty()) {
    parts.global_ranks.resize(options.world_size);
    std::iota(parts.global_ranks.begin(), parts.global_ranks.end(), 0);
  }
  parts.store = std::move(store);
  parts.recorder = options.recorder;
  if (parts.recorder == nullptr) {
    parts.recorder = std::make_shared<FlightRecorder>(FlightRecorder::OptionsFromEnv(options.rank));
  }
  if (const Watchdog::Options watchdog = Watchdog::OptionsFromEnv();
      watchdog.enabled && options.world_size > 1) {
    parts.watchdog = std::make_shared<Watchdog>(parts.recorder, watchdog);
  }
  absl::StatusOr<std::unique_ptr<ProcessGroup>> group = Group::Make(std::move(parts));
  if (!group.ok()) return Annotate(group.status(), context);
  return group;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> InitProcessGroup(cluster::Store* store,
                                                               const ProcessGroupOptions& options) {
  return Init(std::shared_ptr<cluster::Store>(store, [](cluster::Store*) {}), options);  // the caller's
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> InitProcessGroup(const ProcessGroupOptions& options) {
  absl::StatusOr<std::unique_ptr<cluster::OpenedStore>> opened =
      cluster::OpenStoreUrl(options.init_method, options.rank, options.world_size, options.timeout);
  if (!opened.ok()) {
    return Annotate(opened.status(), absl::StrCat("process group '", options.name, "'"));
  }
  const std::shared_ptr<cluster::OpenedStore> store = *std::move(opened);
  ProcessGroupOptions complete = options;
  complete.rank = store->rank();
  complete.world_size = store->world_size();
  if (options.epoch == 0 && absl::StartsWith(options.init_method, "env://")) {
    TANDEM_ASSIGN_OR_RETURN(const cluster::Environment env, cluster::Environment::FromEnv());
    complete.epoch = env.epoch;
  }
  return Init(std::shared_ptr<cluster::Store>(store, store->store()), complete);
}

}  // namespace tandem::collectives
