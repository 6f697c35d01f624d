// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_POLICIES_ADMISSION_H_
#define TANDEM_PS_POLICIES_ADMISSION_H_

// Admission policies decide which ids get a row. In click logs most ids are seen once or twice; a row for
// each of them would cost memory and learn nothing.
//
// A decision is a function of (seed, id, update) and of counters that each bucket has for itself. In SYNC
// mode decisions are therefore the same on any number of servers. In the other modes they depend, like
// values, on the order in which pushes arrive.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// An entry of a push whose id has no row.
struct Candidate {
  uint64_t seed;  // of the table
  uint64_t id;
  uint64_t update;  // number of the table's update, from 1
};

// An admission policy with its settings. Immutable and thread-safe. The counters are not part of it: the
// caller holds the lock of the bucket that they belong to.
class Admission {
 public:
  virtual ~Admission() = default;
  // Returns the name of the kind, such as "count".
  virtual absl::string_view kind() const = 0;
  // Returns whether a training pull makes the row. Otherwise pulls make no rows, and Admit is called for
  // every entry of a push whose id has no row.
  virtual bool at_pull() const = 0;
  // Returns the number of bytes of counters in each of `num_buckets` buckets. They are all zero at first.
  virtual size_t counter_bytes(uint32_t num_buckets) const { return 0; }
  // Returns whether the id gets a row now, and counts the candidate in `counters`, which has
  // counter_bytes() elements.
  virtual bool Admit(const Candidate& candidate, absl::Span<uint8_t> counters) const = 0;
};

// Returns the policy that `config` describes, or InvalidArgument naming the field, its value and what is
// allowed. An empty kind means "always".
absl::StatusOr<std::unique_ptr<Admission>> MakeAdmission(const v1::AdmissionConfig& config);

// Returns the kinds that MakeAdmission knows.
absl::Span<const absl::string_view> AdmissionKinds();

}  // namespace tandem::ps

#endif  // TANDEM_PS_POLICIES_ADMISSION_H_
