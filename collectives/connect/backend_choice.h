#ifndef TANDEM_COLLECTIVES_CONNECT_BACKEND_CHOICE_H_
#define TANDEM_COLLECTIVES_CONNECT_BACKEND_CHOICE_H_

// From the text that asks for backends ("auto", "cpu:shm+gloo,cuda:nccl") to factories. Pure functions, but
// for what BuiltInBackends finds on this machine.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/numeric/tensor.h"
#include "collectives/backend.h"

namespace tandem::collectives {

// Every backend of this build.
std::vector<BackendFactory> BuiltInBackends();

// What serves one kind of device.
struct BackendRequest {
  Device::Kind device = Device::Kind::kCpu;
  std::string name;  // of a factory, or "auto"
};

// One request for each device that `text` names, the CPU first. A name without a device is asked for on the
// device that its factory serves. InvalidArgument: a name or device that does not exist (with the nearest one
// and a list of those that do), a device named twice, a backend that does not serve the device.
// FailedPrecondition: a backend that this build was made without, with what to install.
absl::StatusOr<std::vector<BackendRequest>> ParseBackends(absl::string_view text,
                                                          absl::Span<const BackendFactory> factories);

// What "auto" tries on the CPU, best first: "shm" where all peers are on one host, "gloo" where each is
// alone, else "shm+gloo"; then "gloo", which works everywhere.
std::vector<std::string> AutoCandidates(absl::Span<const Peer> peers);

// The first of this name; nullptr if there is none.
const BackendFactory* FindBackend(absl::string_view name, absl::Span<const BackendFactory> factories);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CONNECT_BACKEND_CHOICE_H_
