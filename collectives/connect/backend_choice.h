// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_CONNECT_BACKEND_CHOICE_H_
#define TANDEM_COLLECTIVES_CONNECT_BACKEND_CHOICE_H_

// Turns a text that asks for backends ("auto", "cpu:shm+tcp,cuda:nccl") into factories. Pure functions,
// except that BuiltInBackends depends on this machine.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/numeric/tensor.h"
#include "collectives/backend.h"

namespace tandem::collectives {

// Returns every backend of this build.
std::vector<BackendFactory> BuiltInBackends();

// The backend that is requested for one kind of device.
struct BackendRequest {
  Device::Kind device = Device::Kind::kCpu;
  std::string name;  // a factory's name, or "auto"
};

// Parses `text` into one request for each device that it names, the CPU first. A name without a device is
// requested for the device that its factory serves. Errors:
//
//   - InvalidArgument for a name or device that does not exist (with the nearest one and a list of those that
//     do), a device named twice, or a backend that does not serve the device
//   - FailedPrecondition for a backend that is not part of this build, with the package to install
absl::StatusOr<std::vector<BackendRequest>> ParseBackends(absl::string_view text,
                                                          absl::Span<const BackendFactory> factories);

// Returns the backends that "auto" tries on the CPU, best first: "shm" if all peers are on one host, "tcp"
// if each is alone on its host, else "shm+tcp"; then "tcp", which works everywhere.
std::vector<std::string> AutoCandidates(absl::Span<const RankEndpoint> peers);

// Returns the first factory of this name; nullptr if there is none.
const BackendFactory* FindBackend(absl::string_view name, absl::Span<const BackendFactory> factories);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CONNECT_BACKEND_CHOICE_H_
