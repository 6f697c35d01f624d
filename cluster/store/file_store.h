// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_FILE_STORE_H_
#define TANDEM_CLUSTER_STORE_FILE_STORE_H_

// A store in a file that all processes can reach, without a server or a port. torch.distributed's FileStore.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cluster/store/log.h"
#include "cluster/store/memory_store.h"
#include "cluster/store/store.h"

namespace tandem::cluster {

struct FileStoreOptions {
  // How many processes will use the file. The last one to close it removes it, once that many have opened it.
  // 0: the file is never removed.
  int users = 0;
  // True: Open clears the file if no process uses it now and an earlier user did not close it, because it was
  // killed. The content of that job would mislead the next one. False: Open sees the content. Content whose
  // users have all closed the file is never cleared.
  bool clear_abandoned = false;
  // Longest wait for the file's lock in Open, in the destructor and in calls that have no time-out of their
  // own. Other processes and other threads of this process hold the lock for microseconds, unless one of
  // them, or the file system, is stopped.
  absl::Duration lock_timeout = absl::Seconds(30);
};

// Thread-safe; no call may be in progress when it is destroyed. Must not be used in a child that was forked
// without exec. Several objects, also of one process, may use the same file. Each keeps the content in
// memory.
//
// Every change is one record at the end of a log. It is written under the file's exclusive lock after all
// earlier records were read. So changes have one order, which all processes see, and a killed process has
// made a change wholly or not at all. The log only grows: it suits rendezvous and thousands of changes, not
// millions.
//
// Get, Wait, MultiGet and Pop poll the file: first after 0.2 ms, then less often, at least every 20 ms. While
// others hold the file's lock, they may exceed their time-out: they wait for the lock until the time-out or
// for 1 s, whichever is longer, and Pop waits up to lock_timeout more to take an item.
//
// Errors in addition to those of Store are those of FileLog (log.h). Unavailable means that the lock was not
// free in time, that the file was removed, or an I/O error. After any error nothing was changed.
class FileStore final : public Store {
 public:
  // Opens the file, or creates it if it does not exist; its directory must exist. Blocks while another
  // process holds its lock, at most options.lock_timeout.
  static absl::StatusOr<std::unique_ptr<FileStore>> Open(const std::string& path,
                                                         const FileStoreOptions& options = {});
  // Closes the file, and removes it as FileStoreOptions::users says. Blocks like Open; logs an error.
  ~FileStore() override;

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override;
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override;
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override;
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override;
  absl::StatusOr<int64_t> Append(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override;
  absl::Status MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  absl::StatusOr<std::vector<std::string>> List(absl::string_view prefix) override;
  absl::StatusOr<int64_t> NumKeys() override;
  absl::Status Push(absl::string_view queue, absl::string_view value) override;
  absl::StatusOr<std::string> Pop(absl::string_view queue, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Length(absl::string_view queue) override;
  // Returns "file://" and the path given to Open: "file:///path".
  std::string address() const override;

 private:
  explicit FileStore(const FileStoreOptions& options) : options_(options) {}

  // Runs `body` while this thread holds the file, with all records read; no other thread or process can
  // change it meanwhile. `exclusive`: `body` may change the file. Unavailable if the lock cannot be had
  // before `deadline`.
  absl::Status WithFile(bool exclusive, absl::Time deadline, const std::function<absl::Status()>& body);
  // WithFile for calls without a time-out: Change with the exclusive lock, Read with the shared one.
  absl::Status Change(const std::function<absl::Status()>& body);
  absl::Status Read();
  // Calls `check` on the newest content until it returns true; returns false if `timeout` passes first.
  absl::StatusOr<bool> Poll(bool exclusive, absl::Duration timeout,
                            const std::function<absl::StatusOr<bool>()>& check);
  absl::StatusOr<std::vector<std::string>> BlockingWait(absl::Span<const std::string> keys, size_t wanted,
                                                        absl::Duration timeout);
  // Writes one change to the log and, if that has succeeded, to state_.
  absl::Status Write(char kind, absl::Span<const absl::string_view> fields);
  absl::Status Apply(absl::string_view record);

  const FileStoreOptions options_;
  absl::Mutex mutex_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // a thread holds the file and owns the members below

  std::unique_ptr<FileLog> log_;
  MemoryStore state_;  // the content: all records that were read, applied in order
  int64_t joined_ = 0, left_ = 0;
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_FILE_STORE_H_
