// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_COPY_ROLE_H_
#define TANDEM_PS_SERVER_COPY_ROLE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ps/server/server_parts.h"

namespace tandem::ps {

class DataPath;

// CopyRole answers what a server that is one of several copies of its shard asks about its role. Thread-safe.
class CopyRole {
 public:
  virtual ~CopyRole() = default;

  // Returns OK if the server answers calls other than those that observe. Otherwise Unavailable with the
  // reason.
  virtual absl::Status CheckServing() const = 0;
  // Returns whether CheckServing would return OK. Lock-free.
  virtual bool serving() const = 0;
  // Tells a reader of a follower's tables what it may rely on (Receiver::Read).
  struct FollowerRead {
    uint64_t copy = 0;
    absl::Duration lag;
  };
  // Returns how far this follower's tables are behind the primary's. A reader calls it before it finds its
  // tables and again before it reads rows, and both results must have the same `copy`. Lock-free. OutOfRange:
  // the lag exceeds `max_lag`, or this copy is no complete follower.
  virtual absl::StatusOr<FollowerRead> CheckRead(absl::Duration max_lag) = 0;
  // Counts a read that was answered, or refused with OutOfRange.
  virtual void CountRead(bool served) = 0;
  // Are called before and after LoadCheckpoint replaces the tables (DataPath::SetLoadHooks). BeforeLoad may
  // block; after its error nothing is loaded.
  virtual absl::Status BeforeLoad() = 0;
  virtual void AfterLoad() = 0;
  // Ends the log and the receiver. Blocks until their threads have ended. Idempotent.
  virtual void Stop() = 0;
  virtual DataPath* data_path() = 0;
};

// Returns the role of a server, which begins without one. ps/failover, which depends on this folder, defines
// it (ps/failover/server_data_path.cc).
std::unique_ptr<CopyRole> MakeCopyRole(const ServerParts& parts);

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_COPY_ROLE_H_
