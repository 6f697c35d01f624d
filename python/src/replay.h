// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_REPLAY_H_
#define TANDEM_PYTHON_SRC_REPLAY_H_

#include "nanobind/nanobind.h"

namespace tandem::python {

// Adds EngineServer, ReplayClient, ReplayWriter and ReplaySampler to the module. python/tandem/replay is
// their only user: it checks arrays and arranges samples.
void BindReplay(nanobind::module_& module);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_REPLAY_H_
