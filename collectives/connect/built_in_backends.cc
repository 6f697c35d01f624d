// The one place that knows all backends.

#include "collectives/backends/gloo/gloo_backend.h"
#include "collectives/connect/backend_choice.h"

namespace tandem::collectives {

std::vector<BackendFactory> BuiltInBackends() {
  std::vector<BackendFactory> backends;
  backends.push_back(GlooBackendFactory());
  return backends;
}

}  // namespace tandem::collectives
