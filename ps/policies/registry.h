// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_POLICIES_REGISTRY_H_
#define TANDEM_PS_POLICIES_REGISTRY_H_

// The descriptions of the initializers, admissions and evictions. To add one, write its source file with a
// function that returns its description, and list that function in initializer.cc, admission.cc or
// eviction.cc.

#include <memory>
#include <optional>

#include "base/config_field.h"
#include "base/kind_registry.h"
#include "ps/policies/admission.h"
#include "ps/policies/eviction.h"
#include "ps/policies/initializer.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

// `build` makes the policy of a checked configuration.
template <typename Config, typename Policy>
using PolicyKind = ConfigKind<Config, std::unique_ptr<Policy> (*)(const Config& config)>;

using InitializerKind = PolicyKind<v1::InitializerConfig, Initializer>;
using InitializerRegistry = KindRegistry<v1::InitializerConfig, decltype(InitializerKind::build)>;
using AdmissionKind = PolicyKind<v1::AdmissionConfig, Admission>;
using AdmissionRegistry = KindRegistry<v1::AdmissionConfig, decltype(AdmissionKind::build)>;
using EvictionKind = PolicyKind<v1::EvictionConfig, Eviction>;
using EvictionRegistry = KindRegistry<v1::EvictionConfig, decltype(EvictionKind::build)>;

const InitializerRegistry& Initializers();
const AdmissionRegistry& Admissions();
// The first kind is "none", which builds a null pointer.
const EvictionRegistry& Evictions();

// The fields of normal distributions and what must hold between them.
ConfigField<v1::InitializerConfig> MeanField();
ConfigField<v1::InitializerConfig> StddevField();
std::optional<FieldConflict> CheckNormal(const v1::InitializerConfig& config);

}  // namespace tandem::ps

#endif  // TANDEM_PS_POLICIES_REGISTRY_H_
