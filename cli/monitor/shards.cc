// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/shards.h"

#include <algorithm>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/status.h"
#include "cli/monitor/find_job.h"
#include "cluster/join.h"
#include "cluster/store/remote_store.h"
#include "nlohmann/json.hpp"
#include "ps/failover/placement_text.h"
#include "rpc/connect.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::ordered_json;
using tandem::v1::Replica;
using tandem::v1::ReplicaStatus;
using tandem::v1::ShardPlacement;

// A follower answers at least every 100 ms.
constexpr uint64_t kSilentMs = 500;

CopyReport Ask(const Replica& replica, absl::Duration timeout) {
  CopyReport report{.replica = replica};
  const absl::StatusOr<std::unique_ptr<rpc::Channel>> channel = rpc::ConnectGrpc(replica.address());
  report.status = channel.ok()
                      ? rpc::CallProto(**channel, "/tandem.v1.Failover/GetPlacement",
                                       tandem::v1::GetPlacementRequest(), &report.told, {.timeout = timeout})
                      : channel.status();
  if (report.status.ok() && report.told.self().id() != replica.id()) {
    report.status = absl::NotFoundError(
        absl::StrCat("another copy is at ", replica.address(), " now: the process has started again"));
    report.told.Clear();
  }
  return report;
}

// Asks the copies of all shards, each on a thread of its own: some may be silent.
void AskAll(const std::vector<std::pair<size_t, Replica>>& copies, absl::Duration timeout,
            std::vector<ShardReport>* shards) {
  std::vector<CopyReport> reports(copies.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < copies.size(); ++i) {
    threads.emplace_back([&, i] { reports[i] = Ask(copies[i].second, timeout); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < copies.size(); ++i) {
    (*shards)[copies[i].first].copies.push_back(std::move(reports[i]));
  }
}

// Returns the number of records by which the slowest follower in sync is behind, as the primary knows it.
uint64_t Lag(const ReplicaStatus& primary) {
  uint64_t lag = 0;
  for (const ReplicaStatus::Link& link : primary.links()) {
    if (!link.in_sync()) continue;
    lag = std::max(lag, primary.log_position() - std::min(primary.log_position(), link.applied_position()));
  }
  return lag;
}

std::string RoleName(tandem::v1::ReplicaRole role) {
  switch (role) {
    case tandem::v1::REPLICA_ROLE_STARTING:
      return "starting";
    case tandem::v1::REPLICA_ROLE_LEARNER:
      return "learner";
    case tandem::v1::REPLICA_ROLE_FOLLOWER:
      return "follower";
    case tandem::v1::REPLICA_ROLE_TAKING_OVER:
      return "takes over";
    case tandem::v1::REPLICA_ROLE_PRIMARY:
      return "primary";
    case tandem::v1::REPLICA_ROLE_ENDED:
      return "ending";
    default:
      return "unknown";
  }
}

}  // namespace

const CopyReport* ShardReport::Primary() const {
  if (copies.empty() || copies[0].replica.id() != placement.primary().id()) return nullptr;
  const CopyReport& first = copies[0];
  return first.status.ok() && first.told.role() == tandem::v1::REPLICA_ROLE_PRIMARY && first.told.serving()
             ? &first
             : nullptr;
}

std::string ShardReport::State() const {
  if (placement.version() == 0) return "no primary: none has come up yet";
  if (const CopyReport* const primary = Primary(); primary != nullptr) {
    if (placement.in_sync().empty()) return "no follower in sync";
    // Some push waits for a follower at any moment; it is news if that follower does not answer.
    for (const ReplicaStatus::Link& link : primary->told.links()) {
      if (link.in_sync() && link.silent_ms() > kSilentMs) {
        return absl::StrCat("pushes wait for ", link.replica().address(), ", which has been silent for ",
                            link.silent_ms(), " ms");
      }
    }
    return "ok";
  }
  if (!copies.empty() && !copies[0].told.handing_over_to().empty()) {
    return absl::StrCat("hands over to ", copies[0].told.handing_over_to());
  }
  for (const CopyReport& copy : copies) {
    if (copy.told.role() == tandem::v1::REPLICA_ROLE_TAKING_OVER) {
      return absl::StrCat("no primary: ", copy.replica.address(), " takes over");
    }
  }
  if (copies.empty()) return "no primary";
  const CopyReport& first = copies[0];
  if (!first.status.ok()) return absl::StrCat("no primary: ", first.status.message());
  return absl::StrCat("no primary: ", first.replica.address(), " does not serve",
                      first.told.failure().empty() ? "" : absl::StrCat(": ", first.told.failure()));
}

absl::StatusOr<std::vector<ShardReport>> AskShards(const std::string& address, uint32_t num_servers,
                                                   absl::Duration timeout) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, cluster::ObserveStore(address));
  cluster::RemoteStore store(std::move(channel), timeout);
  // "ps/placement/" without the number.
  const std::string all = ps::PlacementKey(0);
  const std::string prefix = all.substr(0, all.size() - 1);
  const absl::StatusOr<std::vector<std::string>> keys = store.List(prefix);
  if (!keys.ok()) {
    return StoreError(keys.status(), address);
  }
  if (keys->empty()) {
    return absl::NotFoundError(absl::StrCat(
        "the job whose store is at ", address,
        " has no parameter servers with followers, or none yet; they are started with `tandem run --ps N "
        "--ps-followers 1`"));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> texts, store.MultiGet(*keys, timeout));
  std::vector<ShardReport> shards(num_servers);
  for (size_t i = 0; i < keys->size(); ++i) {
    uint32_t shard = 0;
    if (!absl::SimpleAtoi(absl::StripPrefix((*keys)[i], prefix), &shard) || shard > 1 << 16) continue;
    if (shard >= shards.size()) shards.resize(shard + 1);
    TANDEM_ASSIGN_OR_RETURN(shards[shard].placement, ps::PlacementFromText((*keys)[i], texts[i]));
  }
  std::vector<std::pair<size_t, Replica>> copies;
  for (size_t s = 0; s < shards.size(); ++s) {
    shards[s].shard = static_cast<uint32_t>(s);
    if (shards[s].placement.version() == 0) continue;
    copies.emplace_back(s, shards[s].placement.primary());
    for (const Replica& follower : shards[s].placement.in_sync()) copies.emplace_back(s, follower);
  }
  AskAll(copies, timeout, &shards);
  // Only the primary knows its learners.
  std::vector<std::pair<size_t, Replica>> learners;
  for (size_t s = 0; s < shards.size(); ++s) {
    std::set<std::string> known;
    for (const CopyReport& copy : shards[s].copies) known.insert(copy.replica.id());
    if (shards[s].Primary() == nullptr) continue;
    for (const ReplicaStatus::Link& link : shards[s].Primary()->told.links()) {
      if (known.insert(link.replica().id()).second) learners.emplace_back(s, link.replica());
    }
  }
  AskAll(learners, timeout, &shards);
  return shards;
}

std::string ShardsToText(const std::vector<ShardReport>& shards) {
  const std::vector<std::string> titles = {"SHARD",    "TERM", "PRIMARY",   "IN SYNC",   "LEARNERS",
                                           "POSITION", "LAG",  "FAILOVERS", "HANDOVERS", "STATE"};
  std::vector<std::vector<std::string>> lines = {titles};
  for (const ShardReport& shard : shards) {
    const CopyReport* const primary = shard.Primary();
    std::vector<std::string> in_sync, learners;
    for (const Replica& follower : shard.placement.in_sync()) in_sync.push_back(follower.address());
    if (primary != nullptr) {
      for (const ReplicaStatus::Link& link : primary->told.links()) {
        if (!link.in_sync()) learners.push_back(link.replica().address());
      }
    }
    const auto list = [](const std::vector<std::string>& addresses) {
      return addresses.empty() ? std::string("-") : absl::StrJoin(addresses, ",");
    };
    const bool placed = shard.placement.version() > 0;
    lines.push_back({absl::StrCat(shard.shard), placed ? absl::StrCat(shard.placement.term()) : "-",
                     placed ? shard.placement.primary().address() : "-", list(in_sync), list(learners),
                     primary == nullptr ? "-" : absl::StrCat(primary->told.log_position()),
                     primary == nullptr ? "-" : absl::StrCat(Lag(primary->told)),
                     placed ? absl::StrCat(shard.placement.failovers()) : "-",
                     placed ? absl::StrCat(shard.placement.handovers()) : "-", shard.State()});
  }
  std::vector<size_t> widths(titles.size(), 0);
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const auto& line : lines) {
    for (size_t i = 0; i + 1 < line.size(); ++i) {
      const bool addresses = i >= 2 && i <= 4;
      absl::StrAppendFormat(&text, addresses ? "%-*s  " : "%*s  ", static_cast<int>(widths[i]), line[i]);
    }
    absl::StrAppend(&text, line.back(), "\n");
  }
  return text;
}

std::string ShardsToJson(const std::vector<ShardReport>& shards) {
  const auto placement_of = [](const ShardPlacement& placement) {
    const absl::StatusOr<std::string> text = ps::PlacementToText(placement);
    return text.ok() ? ParseOrderedJson(*text) : Json::object();
  };
  Json all = Json::array();
  for (const ShardReport& shard : shards) {
    Json copies = Json::array();
    for (const CopyReport& copy : shard.copies) {
      Json one = {{"id", copy.replica.id()}, {"address", copy.replica.address()}};
      if (copy.status.ok()) {
        one["role"] = RoleName(copy.told.role());
        one["serving"] = copy.told.serving();
        one["log_position"] = copy.told.log_position();
        one["stored_position"] = copy.told.stored_position();
        one["applied_position"] = copy.told.applied_position();
        one["silent_ms"] = copy.told.silent_ms();
        one["failure"] = copy.told.failure();
        if (!copy.told.handing_over_to().empty()) one["handing_over_to"] = copy.told.handing_over_to();
      } else {
        one["error"] = std::string(copy.status.message());
      }
      copies.push_back(std::move(one));
    }
    const CopyReport* const primary = shard.Primary();
    all.push_back({{"shard", shard.shard},
                   {"state", shard.State()},
                   {"has_primary", primary != nullptr},
                   {"lag", primary == nullptr ? Json() : Json(Lag(primary->told))},
                   {"placement", placement_of(shard.placement)},
                   {"copies", std::move(copies)}});
  }
  const Json json = {{"shards", std::move(all)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tandem::cli
