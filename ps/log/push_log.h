// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_LOG_PUSH_LOG_H_
#define TANDEM_PS_LOG_PUSH_LOG_H_

// The log of one parameter server: the pushes that it has admitted, and whatever else changes its tables, in
// the order of admission. ps/log/record.h has the format, ps/log/log_reader.h reads it back.
//
// One thread writes. It takes everything that waits, writes it at once, syncs the disk and reports the
// records as durable: the group is what came during the last sync, so that there is no timer to choose.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "ps/log/change_log.h"
#include "ps/log/file_system.h"
#include "ps/log/record.h"

namespace tandem::ps {

// A ChangeLog on a disk. Thread-safe. The destructor calls Stop.
class PushLog : public ChangeLog {
 public:
  struct Options {
    FileSystem* files = nullptr;  // must outlive the log
    std::string directory;
    // The beginning of every segment; the log sets first_position.
    v1::LogSegmentHeader header;
    bool sync = true;                             // false: records are written, and survive the process only
    uint64_t segment_bytes = uint64_t{64} << 20;  // of a segment, unless one record needs more
    uint64_t max_queued_bytes = uint64_t{64} << 20;  // of records that are not durable yet
    absl::Duration retry = absl::Milliseconds(200);  // between attempts to make a segment on a full disk
    // Runs once on the log's thread if the log has failed: nothing that came later is durable.
    std::function<void(const absl::Status&)> on_failure;
    // Runs on the log's thread after each group of records. Must not block.
    std::function<void()> on_group;
  };
  // Makes the first segment, whose records begin with `first_position`. Blocks on the disk. If the disk is
  // full the log begins without a segment, and its records wait for one.
  static absl::StatusOr<std::unique_ptr<PushLog>> Open(const Options& options, uint64_t first_position);
  ~PushLog() override;

  uint64_t Append(RecordKind kind, Bytes body, std::shared_ptr<Space> space, Durable durable) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void WhenDurable(Durable durable) override ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until everything that was appended is durable, without a deadline. Must not be called on the log's
  // thread. Returns the error if it never will be; ResourceExhausted as soon as the log waits for room on a
  // full disk.
  absl::Status AwaitDurableUnlessFull();

  uint64_t last_position() const override;
  // Makes the log fail with `why`: nothing is written or acknowledged any more.
  void Fail(const absl::Status& why);
  absl::Status status() const override;
  // Returns what the log waits for on a full disk.
  std::string waiting_for() const override;

  // Removes the segments whose records are all at or before `position`. Blocks on the disk. After an error
  // the next call tries again. One thread at a time.
  absl::Status RemoveUpTo(uint64_t position);
  // Adds the segments that an earlier life of the server has left, for RemoveUpTo.
  void AddOldSegment(uint64_t first_position, std::string path);

  struct Statistics {
    uint64_t durable_position = 0;
    uint64_t written_bytes = 0;  // of records
    uint64_t groups = 0;
    uint64_t waits = 0;  // calls of AwaitSpace that had to wait
    double longest_sync_s = 0;
  };
  Statistics statistics() const;

  // Writes what was appended, unless the disk is full, and joins the thread. Later records fail. Idempotent.
  void Stop();

 private:
  struct Entry {
    RecordKind kind;
    bool record;  // false: only `durable`
    uint64_t position;
    Bytes body;
    std::shared_ptr<Space> space;
    Durable durable;
  };
  struct Segment {
    uint64_t first_position;
    std::string path;
  };

  explicit PushLog(const Options& options) : ChangeLog(options.max_queued_bytes), options_(options) {}
  void Run();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); }
  // Writes the records of `group`, in as many segments as they need, and makes them durable.
  absl::Status Write(const std::deque<Entry>& group);
  absl::Status WriteBuffer();
  // Makes the current segment durable and begins another one, with room for `bytes`. Waits for room on a full
  // disk, until Stop.
  absl::Status NextSegment(uint64_t first_position, uint64_t bytes);
  absl::Status MakeSegment(uint64_t first_position, uint64_t bytes);

  const Options options_;

  // The writing thread alone uses these.
  std::unique_ptr<LogFile> file_;
  uint64_t file_bytes_ = 0;  // size of the segment
  uint64_t offset_ = 0;      // where the next record goes
  std::string buffer_;       // records to be written at offset_

  mutable absl::Mutex mutex_;
  std::deque<Entry> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<Segment> segments_ ABSL_GUARDED_BY(mutex_);  // in order; the last one is being written
  uint64_t last_position_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t durable_position_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::string waiting_for_ ABSL_GUARDED_BY(mutex_);
  Statistics statistics_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_LOG_PUSH_LOG_H_
