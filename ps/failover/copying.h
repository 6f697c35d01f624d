// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_COPYING_H_
#define TANDEM_PS_FAILOVER_COPYING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/longest_time.h"
#include "ps/failover/shipped_log.h"
#include "ps/server/server_parts.h"
#include "ps/server/state_capture.h"

namespace tandem::ps {

// Copies the tables of a primary to a linked copy while pushes go on: first everything but the rows, then
// one bucket after the other, each between pushes. The next bucket is copied when the last one has been sent,
// so that one bucket is held in memory. Works on the server's background thread; errors end the link.
class Copying : public std::enable_shared_from_this<Copying> {
 public:
  // All must outlive the copying, which ends when the link or the background thread does. The longest time
  // for which pushes waited is noted in `longest_pause`.
  Copying(const ServerParts* server, ShippedLog* log, std::string id, LongestTime* longest_pause);

  // Begins to copy. Does not block.
  void Begin();

 private:
  static constexpr size_t kRecordBytes = size_t{1} << 20;  // of rows in a record
  static constexpr size_t kMostStateBytes = size_t{512} << 20;

  // Posts `step` to the background thread, and ends the link with its error.
  void Post(absl::Status (Copying::*step)());
  absl::Status CopyState();
  absl::Status CopyNextBucket();

  const ServerParts& server_;
  ShippedLog& log_;
  const std::string id_;
  LongestTime& longest_pause_;
  StateCapture capture_;
  const std::vector<uint32_t> buckets_;
  size_t next_bucket_ = 0;  // index in buckets_
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_COPYING_H_
