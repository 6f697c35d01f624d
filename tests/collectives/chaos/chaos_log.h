#ifndef TANDEM_TESTS_COLLECTIVES_CHAOS_CHAOS_LOG_H_
#define TANDEM_TESTS_COLLECTIVES_CHAOS_CHAOS_LOG_H_

// What the workers of the chaos test have written, and whether it can be true of one history.

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
  // The newest step that any worker has counted.
  Latest Look();

  // Internal names the line that contradicts: every step is counted in one epoch, once for each rank, by
  // ranks that agree on the world's size; an epoch begins after the step that all of it say, which is no
  // earlier than any counted before, and no step is left out.
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
