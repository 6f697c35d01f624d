// SPDX-License-Identifier: Apache-2.0
// tandem._core: what the Python package needs of Tandem's C++ libraries. The package checks arguments and has
// the documentation; this module is private to it.

#include "absl/synchronization/mutex.h"
#include "nanobind/nanobind.h"
#include "python/src/checkpoint.h"
#include "python/src/client.h"
#include "python/src/config.h"
#include "python/src/lookup_binding.h"
#include "python/src/process_group.h"
#include "python/src/replay.h"
#include "python/src/rpc.h"
#include "python/src/subscription.h"
#include "python/src/weights.h"

NB_MODULE(_core, module) {
  // As in the `tandem` program: Debian's absl is built with a check of the order of locks, which takes a
  // global lock for each of them. This is the package's own copy of absl.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // Clients and modules in global variables, or in the traceback of an error, live until the interpreter
  // ends, and so do process groups, to which torch refers. That is no bug.
  nanobind::set_leak_warnings(false);
  module.attr("__version__") = TANDEM_VERSION;
  tandem::python::BindConfig(module);
  tandem::python::BindLookup(module);
  tandem::python::BindClient(module);
  tandem::python::BindCheckpoint(module);
  tandem::python::BindProcessGroup(module);
  tandem::python::BindRpc(module);
  tandem::python::BindSubscription(module);
  tandem::python::BindWeights(module);
  tandem::python::BindReplay(module);
}
