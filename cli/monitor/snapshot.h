// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_SNAPSHOT_H_
#define TANDEM_CLI_MONITOR_SNAPSHOT_H_

// Takes a snapshot: the statistics of all parameter servers of a job at one moment.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "google/protobuf/message_lite.h"
#include "rpc/channel.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::cli {

// The statistics of one server.
struct ServerSnapshot {
  std::string address;
  absl::Status status;  // of the calls for the statistics; the fields below are empty unless it is OK
  tandem::v1::ServerStatistics statistics;
  std::vector<tandem::v1::TableInfo> tables;
};

struct Snapshot {
  absl::Time time;                            // of the wall clock, to be shown
  absl::Time taken;                           // of MonotonicNow(), for rates
  std::vector<ServerSnapshot> servers;        // by index
  std::vector<tandem::v1::TableInfo> tables;  // summed over the servers that responded
  // Returns whether any server responded.
  bool AnyCompleted() const;
};

// The connections to a job's servers. For use by one thread.
class ServerSet {
 public:
  // Opens one channel to each server; "" stands for a server that has not registered. Does not block. Returns
  // InvalidArgument for a malformed address.
  static absl::StatusOr<std::unique_ptr<ServerSet>> Connect(std::vector<std::string> addresses);

  size_t size() const { return addresses_.size(); }
  const std::string& address(size_t server) const { return addresses_[server]; }

  // Changes the servers' addresses: connects to servers whose address has changed and to new servers. A
  // malformed address counts as a server that has not registered.
  void Follow(const std::vector<std::string>& addresses);

  // Takes a snapshot, with the `hottest` most frequently pulled ids of each table. Calls all servers
  // concurrently and blocks for at most `timeout`. A server that does not respond has an error as its status.
  Snapshot Take(size_t hottest, absl::Duration timeout);
  // Sends `request` to all servers concurrently and returns their responses, by index. Blocks for at most
  // `timeout`. With `insist`, a call to a server that cannot be reached is retried until then.
  std::vector<absl::StatusOr<Bytes>> CallAll(absl::string_view method,
                                             const google::protobuf::MessageLite& request,
                                             absl::Duration timeout, bool insist);

 private:
  ServerSet() = default;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<rpc::Channel>> channels_;  // nullptr for a server without an address
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_SNAPSHOT_H_
