// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/snapshot.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "ps/client/statistics.h"

namespace tandem::cli {
namespace {

template <typename Message>
absl::Status Parse(const absl::StatusOr<Bytes>& response, Message* message) {
  if (!response.ok()) return response.status();
  if (message->ParseFromString(response->Flatten())) return absl::OkStatus();
  return absl::DataLossError("the answer does not parse; is it a Tandem parameter server?");
}

}  // namespace

bool Snapshot::AnyCompleted() const {
  return std::any_of(servers.begin(), servers.end(),
                     [](const ServerSnapshot& server) { return server.status.ok(); });
}

absl::StatusOr<std::unique_ptr<ServerSet>> ServerSet::Connect(std::vector<std::string> addresses) {
  std::unique_ptr<ServerSet> set(new ServerSet);
  for (const std::string& address : addresses) {
    std::unique_ptr<rpc::Channel> channel;
    if (!address.empty()) {
      TANDEM_ASSIGN_OR_RETURN(channel, rpc::ConnectGrpc(address));
    }
    set->channels_.push_back(std::move(channel));
  }
  set->addresses_ = std::move(addresses);
  return set;
}

void ServerSet::Follow(const std::vector<std::string>& addresses) {
  addresses_.resize(std::max(addresses_.size(), addresses.size()));
  channels_.resize(addresses_.size());
  for (size_t s = 0; s < addresses.size(); ++s) {
    if (addresses[s].empty() || addresses[s] == addresses_[s]) continue;
    absl::StatusOr<std::unique_ptr<rpc::Channel>> channel = rpc::ConnectGrpc(addresses[s]);
    if (!channel.ok()) continue;
    channels_[s] = *std::move(channel);
    addresses_[s] = addresses[s];
  }
}

std::vector<absl::StatusOr<Bytes>> ServerSet::CallAll(absl::string_view method,
                                                      const google::protobuf::MessageLite& request,
                                                      absl::Duration timeout, bool insist) {
  const std::string name = absl::StrCat("/tandem.v1.ParameterServer/", method);
  std::vector<absl::StatusOr<Bytes>> responses(size(), absl::UnavailableError("it has not registered yet"));
  absl::BlockingCounter pending(static_cast<int>(size()));
  for (size_t s = 0; s < size(); ++s) {
    if (channels_[s] == nullptr) {
      pending.DecrementCount();
      continue;
    }
    channels_[s]->CallAsync(name, Bytes(request.SerializeAsString()),
                            {.timeout = timeout, .idempotent = insist},
                            [&responses, &pending, s](absl::StatusOr<Bytes> response) {
                              responses[s] = std::move(response);
                              pending.DecrementCount();
                            });
  }
  pending.Wait();  // each call ends by its own deadline
  return responses;
}

Snapshot ServerSet::Take(size_t hottest, absl::Duration timeout) {
  tandem::v1::ListTablesRequest list;
  list.set_hottest(static_cast<uint32_t>(hottest));
  const absl::Time until = MonotonicNow() + timeout;
  const std::vector<absl::StatusOr<Bytes>> tables = CallAll("ListTables", list, timeout, /*insist=*/false);
  const std::vector<absl::StatusOr<Bytes>> own =
      CallAll("GetServerStatistics", tandem::v1::GetServerStatisticsRequest(),
              std::max(until - MonotonicNow(), absl::Milliseconds(50)), /*insist=*/false);
  Snapshot snapshot{.time = absl::Now(), .taken = MonotonicNow()};
  std::vector<std::vector<tandem::v1::TableInfo>> by_server;
  for (size_t s = 0; s < size(); ++s) {
    ServerSnapshot& server = snapshot.servers.emplace_back();
    server.address = addresses_[s];
    tandem::v1::ListTablesResponse listed;
    server.status = Parse(tables[s], &listed);
    if (server.status.ok()) server.status = Parse(own[s], &server.statistics);
    if (!server.status.ok()) continue;
    server.tables.assign(listed.tables().begin(), listed.tables().end());
    by_server.push_back(server.tables);
  }
  snapshot.tables = ps::SumTables(by_server, hottest);
  return snapshot;
}

}  // namespace tandem::cli
