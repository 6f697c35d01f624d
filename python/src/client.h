// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_CLIENT_H_
#define TANDEM_PYTHON_SRC_CLIENT_H_

#include "nanobind/nanobind.h"

namespace tandem::python {

// Adds the classes Client, Call and FinishedCalls to the module. python/tandem/client.py is their only user:
// it checks arrays and passes their addresses.
void BindClient(nanobind::module_& module);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_CLIENT_H_
