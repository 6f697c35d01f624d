// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_PROCESS_GROUP_H_
#define TANDEM_PYTHON_SRC_PROCESS_GROUP_H_

#include "nanobind/nanobind.h"

namespace tandem::python {

// Adds ProcessGroup, GroupWork and what tandem.torch needs to make groups.
void BindProcessGroup(nanobind::module_& module);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_PROCESS_GROUP_H_
