// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_LOOKUP_BINDING_H_
#define TANDEM_PYTHON_SRC_LOOKUP_BINDING_H_

#include "nanobind/nanobind.h"

namespace tandem::python {

// Adds the classes LookupPlan, LookupRequest, Lookup and LookupPool to the module. python/tandem/nn is their
// only user: it checks tensors, passes their addresses, and keeps them alive during each call.
void BindLookup(nanobind::module_& module);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_LOOKUP_BINDING_H_
