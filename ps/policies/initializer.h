// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_POLICIES_INITIALIZER_H_
#define TANDEM_PS_POLICIES_INITIALIZER_H_

// Initializers write the values that a row has before its first update.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// An initializer with its settings. Immutable and thread-safe.
class Initializer {
 public:
  virtual ~Initializer() = default;
  // Returns the name of the kind, such as "normal".
  virtual absl::string_view kind() const = 0;
  // Writes the initial values of the row `id`, in a table whose seed is `seed`, to row[0, dim). row[i] is a
  // function of (seed, id, i), and for xavier also of dim. It does not depend on the server that makes the
  // row, nor on the rows that were made before.
  virtual void Fill(uint64_t seed, uint64_t id, float* row, size_t dim) const = 0;
};

// Returns the initializer that `config` describes, or InvalidArgument naming the field, its value and what is
// allowed.
absl::StatusOr<std::unique_ptr<Initializer>> MakeInitializer(const v1::InitializerConfig& config);

// Returns the kinds that MakeInitializer knows.
absl::Span<const absl::string_view> InitializerKinds();

}  // namespace tandem::ps

#endif  // TANDEM_PS_POLICIES_INITIALIZER_H_
