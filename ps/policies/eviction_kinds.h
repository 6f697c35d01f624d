#ifndef TANDEM_PS_POLICIES_EVICTION_KINDS_H_
#define TANDEM_PS_POLICIES_EVICTION_KINDS_H_

// The makers behind MakeEviction, one per file of this folder.

#include <memory>

#include "absl/status/statusor.h"
#include "ps/policies/eviction.h"

namespace tandem::ps {

using EvictionOr = absl::StatusOr<std::unique_ptr<Eviction>>;

EvictionOr MakeLru(const v1::EvictionConfig& config);
EvictionOr MakeLfu(const v1::EvictionConfig& config);
EvictionOr MakeTtl(const v1::EvictionConfig& config);
EvictionOr MakeL2Norm(const v1::EvictionConfig& config);

}  // namespace tandem::ps

#endif  // TANDEM_PS_POLICIES_EVICTION_KINDS_H_
