#ifndef TANDEM_PS_POLICIES_INITIALIZER_H_
#define TANDEM_PS_POLICIES_INITIALIZER_H_

// What a row holds before its first update.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Immutable and thread-safe.
class Initializer {
 public:
  virtual ~Initializer() = default;
  virtual absl::string_view kind() const = 0;
  // row[0, dim) = the initial values of row `id` in a table whose seed is `seed`. row[i] is a function of
  // (seed, id, i), for Xavier also of dim: never of which rows were made before, or where.
  virtual void Fill(uint64_t seed, uint64_t id, float* row, size_t dim) const = 0;
};

// The initializer that `config` describes. InvalidArgument names the field, its value and what is allowed.
absl::StatusOr<std::unique_ptr<Initializer>> MakeInitializer(const v1::InitializerConfig& config);

// The kinds MakeInitializer knows.
absl::Span<const absl::string_view> InitializerKinds();

}  // namespace tandem::ps

#endif  // TANDEM_PS_POLICIES_INITIALIZER_H_
