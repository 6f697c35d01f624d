#ifndef TANDEM_COLLECTIVES_STORE_FILE_STORE_H_
#define TANDEM_COLLECTIVES_STORE_FILE_STORE_H_

// A store in a file that all processes can reach: no server, no port. torch.distributed's FileStore.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "collectives/store/log.h"
#include "collectives/store/memory_store.h"
#include "collectives/store/store.h"

namespace tandem::collectives {

struct FileStoreOptions {
  // How many processes will use the file. The last one to go removes it, once that many have come. 0: nobody
  // removes it.
  int users = 0;
  // Starts anew when nobody uses the file now but somebody was killed while using it: what such a job left
  // behind would mislead the next one.
  bool clear_abandoned = false;
  // How long a call without a time-out of its own waits for another process that holds the file's lock; a
  // lock is held for microseconds, unless its holder is stopped or the file system is.
  absl::Duration lock_timeout = absl::Seconds(30);
};

// Thread-safe; not to be used in a child that was forked without exec. Every change is one record at the end
// of a log, made under the file's exclusive lock after all earlier records were read: so changes have one
// order, which all processes see, and a killed process has made a change wholly or not at all. Each process
// keeps the content in memory. The log only grows: it suits rendezvous and thousands of changes, not
// millions.
//
// Waiting calls look again after 0.2 ms, then less often, at most every 20 ms. Errors, beside the Store's:
// see FileLog. After any of them nothing was changed.
class FileStore final : public Store {
 public:
  // Creates the file if there is none. Blocks while others hold its lock, at most options.lock_timeout.
  static absl::StatusOr<std::unique_ptr<FileStore>> Open(const std::string& path,
                                                         const FileStoreOptions& options = {});
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
  // "file:///path".
  std::string address() const override;

 private:
  explicit FileStore(const FileStoreOptions& options) : options_(options) {}

  // Runs `body` while this thread, of this process, and this process, of all, has the file, with all records
  // read. `exclusive`: `body` may change it. Unavailable if that cannot be had before `deadline`.
  absl::Status WithFile(bool exclusive, absl::Time deadline, const std::function<absl::Status()>& body);
  // For calls without a time-out.
  absl::Status Change(const std::function<absl::Status()>& body);
  absl::Status Look();
  // Runs `look` (true: found) over the newest content until then, at most `timeout`; false when time is up.
  absl::StatusOr<bool> Poll(bool exclusive, absl::Duration timeout,
                            const std::function<absl::StatusOr<bool>()>& look);
  absl::StatusOr<std::vector<std::string>> BlockingWait(absl::Span<const std::string> keys, size_t wanted,
                                                        absl::Duration timeout);
  // Writes one change to the log and, when that has succeeded, to state_.
  absl::Status Write(char kind, absl::Span<const absl::string_view> fields);
  absl::Status Apply(absl::string_view record);

  const FileStoreOptions options_;
  absl::Mutex mutex_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // a thread has the file: the three below belong to it

  std::unique_ptr<FileLog> log_;
  MemoryStore state_;  // what the records that were read amount to
  int64_t joined_ = 0, left_ = 0;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_STORE_FILE_STORE_H_
