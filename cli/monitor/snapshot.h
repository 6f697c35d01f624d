#ifndef TANDEM_CLI_MONITOR_SNAPSHOT_H_
#define TANDEM_CLI_MONITOR_SNAPSHOT_H_

// What all servers of a job say of themselves at one moment.

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

struct ServerSnapshot {
  std::string address;
  absl::Status status;  // of asking; the rest is empty unless OK
  tandem::v1::ServerStatistics statistics;
  std::vector<tandem::v1::TableInfo> tables;
};

struct Snapshot {
  absl::Time time;
  std::vector<ServerSnapshot> servers;        // by index
  std::vector<tandem::v1::TableInfo> tables;  // over the servers that answered
  bool AnyCompleted() const;
};

// Connections to a job's servers. Used by one thread.
class ServerSet {
 public:
  // One channel to each; an address of "" is a server that has not registered. InvalidArgument for a
  // malformed one.
  static absl::StatusOr<std::unique_ptr<ServerSet>> Connect(std::vector<std::string> addresses);

  size_t size() const { return addresses_.size(); }
  const std::string& address(size_t server) const { return addresses_[server]; }

  // The job's servers have these addresses now: connects to those that have another one than before, or are
  // new. A malformed address stands for a server that has not registered.
  void Follow(const std::vector<std::string>& addresses);

  // Asks all servers at once; blocks at most `timeout`. One that does not answer says so in its part.
  Snapshot Take(size_t hottest, absl::Duration timeout);
  // Sends `request` to all servers at once; what each answered. Blocks at most `timeout`. `insist`: a server
  // that cannot be reached is tried again until then.
  std::vector<absl::StatusOr<Bytes>> CallAll(absl::string_view method,
                                             const google::protobuf::MessageLite& request,
                                             absl::Duration timeout, bool insist);

 private:
  ServerSet() = default;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<rpc::Channel>> channels_;  // nullptr where there is no address
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_SNAPSHOT_H_
