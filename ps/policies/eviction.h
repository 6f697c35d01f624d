#ifndef TANDEM_PS_POLICIES_EVICTION_H_
#define TANDEM_PS_POLICIES_EVICTION_H_

// Which rows leave a table. What is known of a row is counted in updates of the table and lies in the row or
// its index cell, so that decisions are part of checkpoints, and in SYNC mode the same on any number of
// servers. (In the other modes they depend, as values do, on the order in which pushes arrive.)

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// What a policy may look at. Fields that it does not ask for are 0.
struct RowStats {
  uint64_t age = 0;         // updates of the table since the row's last
  uint64_t count = 0;       // of the row's updates
  double squared_norm = 0;  // of its embedding
};

// Immutable and thread-safe.
class Eviction {
 public:
  virtual ~Eviction() = default;
  virtual absl::string_view kind() const = 0;
  virtual bool needs_count() const { return false; }
  virtual bool needs_norm() const { return false; }
  // Whether rows may expire whatever room there is: then buckets are swept in turn, one an update.
  virtual bool sweeps() const { return false; }
  virtual bool Expired(const RowStats& row) const { return false; }
  // When a bucket has used up its part of the budget, the rows of the lowest worth leave; among equals, those
  // of the lowest ids.
  virtual double Priority(const RowStats& row) const = 0;
};

// The eviction that `config` describes; nullptr for an empty kind or "none". InvalidArgument names the field,
// its value and what is allowed.
absl::StatusOr<std::unique_ptr<Eviction>> MakeEviction(const v1::EvictionConfig& config);

// The kinds MakeEviction knows, "none" first.
absl::Span<const absl::string_view> EvictionKinds();

// Returns whether the kind evicts rows only when the table's byte_budget is used up, so that it needs one.
// False for "none", for unknown kinds and for kinds whose rows expire.
bool EvictsForBudget(absl::string_view kind);
// Returns the kinds other than "none" for error messages, as "lru, lfu or ttl". If `for_budget_only`, returns
// only those for which EvictsForBudget() is true.
std::string EvictionKindsText(bool for_budget_only);

}  // namespace tandem::ps

#endif  // TANDEM_PS_POLICIES_EVICTION_H_
