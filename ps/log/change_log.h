// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_LOG_CHANGE_LOG_H_
#define TANDEM_PS_LOG_CHANGE_LOG_H_

// The order in which a parameter server has admitted pushes and other changes of its tables, and what makes
// them safe: a disk (ps/log/push_log.h) or the memory of followers (ps/failover/shipped_log.h). The request
// handler appends each change before it applies it, and answers once it is durable.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "ps/log/record.h"

namespace tandem::ps {

// Thread-safe.
class ChangeLog {
 private:
  class Queue;

 public:
  // Space in the queue, which a push takes before it is admitted. The destructor gives it back; the log need
  // not exist any more.
  class Space {
   public:
    Space(std::shared_ptr<Queue> queue, uint64_t bytes) : queue_(std::move(queue)), bytes_(bytes) {}
    ~Space();
    Space(const Space&) = delete;
    Space& operator=(const Space&) = delete;

   private:
    const std::shared_ptr<Queue> queue_;
    const uint64_t bytes_;
  };
  // Runs when a record is durable, or with the error for which it will never be. Usually on a thread of the
  // log; must not block.
  using Durable = std::function<void(const absl::Status&)>;
  using Granted = std::function<void(std::shared_ptr<Space>)>;

  // `max_queued_bytes`: of the records that are not durable yet.
  explicit ChangeLog(uint64_t max_queued_bytes);
  virtual ~ChangeLog();

  // Returns space for a record of about `bytes` bytes, or nullptr if the queue is full or blocked. One record
  // always fits into an empty queue.
  std::shared_ptr<Space> TakeSpace(uint64_t bytes);
  // Calls `granted` with the space once there is some: in this call, or on the thread that makes room, which
  // it must not block. Requests are served in their order.
  void AwaitSpace(uint64_t bytes, Granted granted);
  // Returns how many calls of AwaitSpace had to wait.
  uint64_t space_waits() const;

  // Appends a record and returns its position, without blocking. Positions count by one. Records with a
  // `space` count against the queue's limit until they are durable. `durable` may be empty; it may run in
  // this call.
  virtual uint64_t Append(RecordKind kind, Bytes body, std::shared_ptr<Space> space, Durable durable) = 0;
  // Calls `durable` once everything that was appended is durable: in this call if it already is.
  virtual void WhenDurable(Durable durable) = 0;

  // Returns the position of the last record that was appended.
  virtual uint64_t last_position() const = 0;
  // Returns the reason why the log takes no more records; OK while it does.
  virtual absl::Status status() const = 0;
  // Returns what keeps records from becoming durable, for messages; empty if nothing unusual does.
  virtual std::string waiting_for() const = 0;

 protected:
  // While the queue is blocked it gives no space.
  void BlockSpace(bool blocked);
  // Drops the requests for space that wait, and grants none any more. Their callers have to end the pushes.
  void StopSpace();

 private:
  const std::shared_ptr<Queue> queue_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_LOG_CHANGE_LOG_H_
