// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_STORE_DISK_H_
#define TANDEM_CLUSTER_STORE_STORE_DISK_H_

// Keeps a MemoryStore and the Membership next to it on a disk, so that they survive their process and their
// machine.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/directory_lock.h"
#include "cluster/membership/local_membership.h"
#include "cluster/store/log.h"
#include "cluster/store/memory_store.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cluster {

// Thread-safe. Owns two threads: one syncs, one rewrites the log.
//
// The directory has the files LOCK (base/directory_lock.h) and `log` (log.h). Every change is a record of the
// log, with the id of the client's request. Changes that happen at the same time share a sync (group commit).
// A log of more than 4 MiB that is twice as large as the content was when it was last written is rewritten
// as `log.new`, while changes go on, and then renamed.
class StoreDisk final : public StoreJournal, public MembershipJournal {
 public:
  // Reads what is in `directory` into `store`, which must be empty and outlive this object, and becomes the
  // journal of `store`. Makes the directory if it is missing. `on_failure` is called at most once, on a
  // thread of this object, when the disk has failed to sync: everything that was acknowledged is safe, but
  // nothing can be any more, so the process must end.
  //
  // Errors: Unavailable if another process uses the directory (the message has its id), DataLoss for a
  // damaged log, ResourceExhausted for a content beyond the store's limits or a full disk, and those of
  // FileLog::Open. Each names the file.
  static absl::StatusOr<std::unique_ptr<StoreDisk>> Open(const std::string& directory, MemoryStore* store,
                                                         std::function<void()> on_failure);
  ~StoreDisk() override;

  // Makes `membership` what the directory has of it, and becomes its journal. Call it once, before the
  // membership is used. `membership` must outlive this object.
  void Restore(LocalMembership* membership);

  // A random number, not 0, that was drawn when the directory was first used.
  uint64_t incarnation() const { return incarnation_; }

  // ResourceExhausted if the disk is full: nothing was changed. Aborted once the disk has failed.
  absl::Status Write(char kind, absl::Span<const absl::string_view> fields,
                     absl::string_view request_id) override;
  // These write a change of the membership, with the same errors.
  absl::Status WriteLife(absl::string_view member, const v1::LifeRecord& life) override;
  absl::Status WriteEnd(const JobState& end) override;
  // Calls `then` once everything is on the disk that was written before this call: now, on this thread, if
  // that is the case, else on a thread of this object. Aborted if the disk has failed. `then` must not block.
  void WhenSynced(std::function<void(const absl::Status&)> then);
  // Returns the error of a disk that has failed, else OK.
  absl::Status failure() const;
  // Returns the size of the log in bytes.
  uint64_t log_bytes() const;

 private:
  struct Waiting {
    uint64_t number;  // of the last change that must be on the disk
    std::function<void(const absl::Status&)> then;
  };

  StoreDisk(std::string directory, MemoryStore* store, std::function<void()> on_failure);
  // Applies one record of the log.
  absl::Status Apply(absl::string_view body);
  absl::Status ReadLog();
  void RunSyncs();
  void RunRewrites();
  // Writes the content as it is now to `log.new`, which becomes the log. After an error the log is as before.
  absl::Status Rewrite();
  absl::Status WriteContents(const StoreContents& contents, const std::vector<std::string>& members,
                             FileLog* log) const;
  // Returns the records of lives_ and end_.
  std::vector<std::string> MembershipRecords() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FirstRecord(FileLog* log) const;
  absl::Status Append(const std::string& body) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string LogPath() const;

  const std::string directory_;
  MemoryStore* const store_;
  LocalMembership* membership_ = nullptr;
  const std::function<void()> on_failure_;
  std::unique_ptr<DirectoryLock> lock_;
  uint64_t incarnation_ = 0;

  // Taken while the lock of the store or of the membership is held (Write, WriteLife); neither must be called
  // under it.
  mutable absl::Mutex mutex_;
  std::shared_ptr<FileLog> log_ ABSL_GUARDED_BY(mutex_);
  // These are the records of the membership that the log has.
  std::map<std::string, v1::LifeRecord, std::less<>> lives_ ABSL_GUARDED_BY(mutex_);
  std::optional<JobState> end_ ABSL_GUARDED_BY(mutex_);
  uint64_t written_ ABSL_GUARDED_BY(mutex_) = 0;  // changes
  uint64_t synced_ ABSL_GUARDED_BY(mutex_) = 0;   // of these, on the disk
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  bool rewriting_ ABSL_GUARDED_BY(mutex_) = false;
  std::string meanwhile_
      ABSL_GUARDED_BY(mutex_);  // records since the rewriting began, each after its u32 size
  uint64_t rewrite_at_ ABSL_GUARDED_BY(mutex_) = 0;  // size of the log
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread syncing_, rewriter_;
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_STORE_DISK_H_
