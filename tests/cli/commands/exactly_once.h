// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_CLI_COMMANDS_EXACTLY_ONCE_H_
#define TANDEM_TESTS_CLI_COMMANDS_EXACTLY_ONCE_H_

// Checks that servers count each push once, whatever happens to them meanwhile: rows begin at zero, every
// gradient is -1, and SGD with learning rate 1 adds it to the row. Each push has a row of its own on every
// server, and all pushes share one row on every server.

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "ps/client/client.h"
#include "ps/table.h"

namespace tandem::cli {

struct Mode {
  const char* name;
  ps::v1::UpdateMode mode;
};
// Returns one mode of each kind: async, bounded, sync, gba.
std::vector<Mode> AllModes();
// The table "t" of these tests.
ps::v1::TableConfig CountingTable(uint32_t dim, const ps::v1::UpdateMode& mode, uint32_t workers);
// Returns ids that are not less than `from`, of which the first lies on server 0, the second on server 1, and
// so on.
std::vector<uint64_t> IdOnEachServer(uint64_t from, uint32_t servers);
// Returns the ids of the rows that all pushes, and that one push, of a worker adds to.
std::vector<uint64_t> SharedIds(uint32_t servers);
std::vector<uint64_t> IdsOfPush(uint32_t worker, uint64_t step, uint32_t servers);

// Workers that push until they are told to end. Thread-safe.
class ExactlyOnce {
 public:
  struct Options {
    uint32_t servers = 2;
    uint32_t workers = 2;
    uint32_t other_workers = 0;  // of larger ranks, in other processes
    int in_flight = 8;           // pushes of each worker
    uint32_t dim = 32;
    ps::v1::UpdateMode mode;
    std::function<absl::StatusOr<std::unique_ptr<ps::Client>>(uint32_t worker)> connect;
  };
  // Creates the table "t" and starts the workers.
  static absl::StatusOr<std::unique_ptr<ExactlyOnce>> Start(Options options);
  // Calls End.
  ~ExactlyOnce();

  // Returns the number of acknowledged pushes, of all workers.
  uint64_t acknowledged() const;
  // Blocks until at least `count` pushes are under way. Returns the number of them, or -1 after kTestTimeout,
  // or if a worker has failed.
  int AwaitInFlight(int count);
  // Returns whether a worker has failed.
  bool failed() const;
  // Blocks until `more` further pushes are acknowledged. Returns false after kTestTimeout, or if a worker has
  // failed.
  bool AwaitAcknowledged(uint64_t more);
  // Ends all workers after the same number of steps. Returns the first error of a push or a pull. Idempotent.
  absl::Status End();
  // Calls End, reads all rows and compares them with the number of pushes. Other workers have added
  // `others[server]` pushes to the shared rows; empty: none.
  ::testing::AssertionResult EachPushCountsOnce(const std::vector<uint64_t>& others = {});

 private:
  explicit ExactlyOnce(Options options) : options_(std::move(options)) {}

  void Work(uint32_t worker);
  // Returns whether the worker shall push `step`. Blocks while too many pushes are under way.
  bool Begin(uint32_t worker, uint64_t step);
  void Finish(uint32_t worker, const absl::Status& status);

  const Options options_;
  std::vector<std::unique_ptr<ps::Client>> clients_;
  mutable absl::Mutex mutex_;
  uint64_t end_ ABSL_GUARDED_BY(mutex_) = ~uint64_t{0};  // the number of steps of each worker
  std::vector<uint64_t> begun_ ABSL_GUARDED_BY(mutex_);  // [worker]: steps
  std::vector<int> in_flight_ ABSL_GUARDED_BY(mutex_);   // [worker]
  uint64_t acknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status result_ ABSL_GUARDED_BY(mutex_);  // the first error
  std::vector<std::thread> threads_;
};

}  // namespace tandem::cli

#endif  // TANDEM_TESTS_CLI_COMMANDS_EXACTLY_ONCE_H_
