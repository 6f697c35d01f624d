// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_SUBSCRIPTION_H_
#define TANDEM_PYTHON_SRC_SUBSCRIPTION_H_

#include "nanobind/nanobind.h"

namespace tandem::python {

// Adds Subscription and DirectoryFollower to the module. python/tandem/_changes.py is their only user.
void BindSubscription(nanobind::module_& module);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_SUBSCRIPTION_H_
