// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_POLICIES_EVICTION_H_
#define TANDEM_PS_POLICIES_EVICTION_H_

// Eviction policies decide which rows leave a table. They look at facts that are counted in updates of the
// table and stored in the row or its index cell. Decisions are therefore part of checkpoints, and in SYNC
// mode the same on any number of servers. In the other modes they depend, like values, on the order in which
// pushes arrive.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// The facts about a row that a policy may use. Facts that it does not ask for are 0.
struct RowStats {
  uint64_t age = 0;         // updates of the table since the last update of the row
  uint32_t count = 0;       // what Eviction::Counted returned at that update; only with needs_count()
  double squared_norm = 0;  // squared L2 norm of its weights; only with needs_norm()
};

// An eviction policy with its settings. Immutable and thread-safe.
class Eviction {
 public:
  // The count of a row whose id has occurred once.
  static constexpr uint32_t kOneOccurrence = 256;

  virtual ~Eviction() = default;
  // Returns the name of the kind, such as "lru".
  virtual absl::string_view kind() const = 0;
  // Return whether the policy uses RowStats::count and RowStats::squared_norm.
  virtual bool needs_count() const { return false; }
  // Returns the count of a row after one more update, `age` updates of the table after the one before it. The
  // row's id occurred `occurrences` times in the pushes of the update, at least once. A new row has count 0,
  // and kOneOccurrence for each occurrence after its first update. Counts and occurrences that are too large
  // saturate. Only called if needs_count(), once for each row of an update, so it must be cheap.
  virtual uint32_t Counted(uint32_t count, uint64_t age, uint32_t occurrences) const { return count; }
  virtual bool needs_norm() const { return false; }
  // Returns whether rows may expire while the table is within its byte_budget. If so, one bucket is searched
  // for expired rows at each update, in turn.
  virtual bool sweeps() const { return false; }
  // Returns whether the row leaves although there is memory for it. Only called if sweeps().
  virtual bool Expired(const RowStats& row) const { return false; }
  // Returns the priority with which a row stays. When a bucket has used up its part of the byte_budget, rows
  // of the lowest priority leave first; among equals, those of the lowest ids.
  virtual double Priority(const RowStats& row) const = 0;
};

// Returns the policy that `config` describes, or null if its kind is empty or "none". InvalidArgument names
// the field, its value and what is allowed.
absl::StatusOr<std::unique_ptr<Eviction>> MakeEviction(const v1::EvictionConfig& config);

// Returns the kinds that MakeEviction knows, "none" first.
absl::Span<const absl::string_view> EvictionKinds();

// Returns whether the kind evicts rows only when the table's byte_budget is used up, so that it needs one.
// False for "none", for unknown kinds and for kinds whose rows expire.
bool EvictsForBudget(absl::string_view kind);
// Returns the kinds other than "none" for error messages, as "lru, lfu or ttl". If `for_budget_only`, returns
// only those for which EvictsForBudget() is true.
std::string EvictionKindsText(bool for_budget_only);

}  // namespace tandem::ps

#endif  // TANDEM_PS_POLICIES_EVICTION_H_
