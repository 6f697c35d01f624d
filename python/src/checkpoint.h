// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_CHECKPOINT_H_
#define TANDEM_PYTHON_SRC_CHECKPOINT_H_

#include "nanobind/nanobind.h"

namespace tandem::python {

// Adds the functions of ps/checkpoint that tandem.Client uses to begin, commit, find and export checkpoints.
void BindCheckpoint(nanobind::module_& module);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_CHECKPOINT_H_
