#ifndef TANDEM_PS_SERVER_TABLE_TABLE_PUSH_H_
#define TANDEM_PS_SERVER_TABLE_TABLE_PUSH_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/trace/trace.h"

namespace tandem::ps {

// Where server 0 has put a push among a GBA table's updates; 0: nowhere.
struct PushPlace {
  uint64_t update = 0;
  bool stale = false;  // left out of it
};

// One push's gradients for one table.
struct TablePush {
  uint32_t worker = 0;
  uint64_t step = 0;
  uint64_t pulled_version = 0;
  PushPlace place;         // GBA
  bool held_back = false;  // of steps that were pushed before: counts as none
  absl::Span<const uint64_t> ids;
  const float* gradients = nullptr;  // [ids.size() x dim]
  float learning_rate_factor = 1.0f;
  const float* row_factors = nullptr;  // [ids.size()], beside learning_rate_factor; or none, when all are 1
  std::shared_ptr<const void> memory;  // keeps ids and gradients alive
  uint64_t memory_bytes = 0;
  uint64_t traced = trace::Begin();  // since when it waits to be applied, for traces
  // Runs once, under no lock: when the push is applied (with the entries its update dropped because their row
  // is gone, or with the error because of which the table serves no more), or when it is kept to wait for
  // other pushes (with 0).
  using Settled = std::function<void(const absl::StatusOr<uint64_t>& missing)>;
  Settled settled;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_TABLE_PUSH_H_
