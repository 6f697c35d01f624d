// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_WEIGHTS_H_
#define TANDEM_PYTHON_SRC_WEIGHTS_H_

#include <memory>

#include "nanobind/nanobind.h"
#include "python/src/engine_server.h"

namespace tandem::python {

// Adds WeightsClient, WeightsPublisher and WeightsModel to the module. python/tandem/weights.py is their only
// user.
void BindWeights(nanobind::module_& module);

// Returns a client of the weights in `server`, as Python sees it. Requires the GIL.
nanobind::object WeightsClientOf(std::shared_ptr<EngineServer> server, double timeout_s);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_WEIGHTS_H_
