// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_CONFORMANCE_REFERENCE_BACKEND_H_
#define TANDEM_TESTS_COLLECTIVES_CONFORMANCE_REFERENCE_BACKEND_H_

// A backend for ranks that are threads of one process, for tests that need no transport: the last rank to
// come computes all ranks' results. It keeps the whole contract of Backend: time-outs, disagreements,
// leaving, aborts.
//
//   ReferenceWorld world;
//   InitProcessGroup(&store, {.backend = "reference", ..., .extra_backends = {world.factory()}});

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "collectives/backend.h"

namespace tandem::collectives {

// The state that the ranks of one group share; see reference_backend.cc.
class ReferenceHub;

// Need not outlive its groups: backends share what they need. Thread-safe.
class ReferenceWorld {
 public:
  BackendFactory factory(std::string name = "reference");

 private:
  struct Hubs {
    absl::Mutex mutex;
    std::map<std::string, std::shared_ptr<ReferenceHub>> by_group ABSL_GUARDED_BY(mutex);
  };
  std::shared_ptr<Hubs> hubs_ = std::make_shared<Hubs>();
};

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_CONFORMANCE_REFERENCE_BACKEND_H_
