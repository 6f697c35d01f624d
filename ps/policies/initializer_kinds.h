#ifndef TANDEM_PS_POLICIES_INITIALIZER_KINDS_H_
#define TANDEM_PS_POLICIES_INITIALIZER_KINDS_H_

// The makers behind MakeInitializer, one per file of this folder. Each checks the fields of its kind.

#include <memory>

#include "absl/status/statusor.h"
#include "ps/policies/initializer.h"

namespace tandem::ps {

using InitializerOr = absl::StatusOr<std::unique_ptr<Initializer>>;

InitializerOr MakeZeros(const v1::InitializerConfig& config);
InitializerOr MakeConstant(const v1::InitializerConfig& config);
InitializerOr MakeUniform(const v1::InitializerConfig& config);
InitializerOr MakeNormal(const v1::InitializerConfig& config);
InitializerOr MakeTruncatedNormal(const v1::InitializerConfig& config);
InitializerOr MakeXavier(const v1::InitializerConfig& config);

}  // namespace tandem::ps

#endif  // TANDEM_PS_POLICIES_INITIALIZER_KINDS_H_
