// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_CHAOS_CHAOS_LOG_H_
#define TANDEM_TESTS_COLLECTIVES_CHAOS_CHAOS_LOG_H_

// Reads the lines of the chaos test's workers, and checks that they are consistent.

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"

namespace tandem::collectives {

class ChaosLog {
 public:
  explicit ChaosLog(std::string directory) : directory_(std::move(directory)) {}

  struct Latest {
    int64_t epoch = 0, step = 0;
    int world_size = 0;
  };
  // Returns the newest step that any worker has counted.
  Latest ReadLatest();

  // Internal names the line that contradicts one of these rules:
  //
  //   - every step is counted in one epoch, once for each rank, by ranks that agree on the world's size
  //   - an epoch begins after the step that all its ranks report, which is no earlier than any counted before
  //   - no step is left out
  absl::Status Check();

 private:
  void Read();

  const std::string directory_;
  std::map<std::string, int64_t> offsets_;
  std::map<std::string, std::string> texts_;
  Latest latest_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_CHAOS_CHAOS_LOG_H_
