#ifndef TANDEM_PS_POLICIES_ADMISSION_H_
#define TANDEM_PS_POLICIES_ADMISSION_H_

// Which ids get a row. In click logs most ids are seen once or twice; a row for each costs memory and learns
// nothing.
//
// Decisions are functions of (seed, id, update) and of counters that a bucket keeps for itself, so that in
// SYNC mode they are the same on any number of servers. (In the other modes they depend, as values do, on the
// order in which pushes arrive.)

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// A push's entry whose id has no row.
struct Candidate {
  uint64_t seed;  // the table's
  uint64_t id;
  uint64_t update;  // the table's clock, from 1
};

// Immutable and thread-safe; a bucket's counters are not: its lock guards them.
class Admission {
 public:
  virtual ~Admission() = default;
  virtual absl::string_view kind() const = 0;
  // Whether a training pull makes the row at once. Otherwise pulls make none, and Admit is asked for every
  // entry of a push whose id has no row.
  virtual bool at_pull() const = 0;
  // Bytes of counters that each of `num_buckets` buckets keeps, all zero at first.
  virtual size_t counter_bytes(uint32_t num_buckets) const { return 0; }
  // Whether the id gets its row now. Notes in `counters` that it was seen.
  virtual bool Admit(const Candidate& candidate, absl::Span<uint8_t> counters) const = 0;
};

// The admission that `config` describes; an empty kind is "always". InvalidArgument names the field, its
// value and what is allowed.
absl::StatusOr<std::unique_ptr<Admission>> MakeAdmission(const v1::AdmissionConfig& config);

// The kinds MakeAdmission knows.
absl::Span<const absl::string_view> AdmissionKinds();

}  // namespace tandem::ps

#endif  // TANDEM_PS_POLICIES_ADMISSION_H_
