// SPDX-License-Identifier: Apache-2.0
// tandem._core: what the Python package needs of Tandem's C++ libraries. The package checks arguments and has the
// documentation; this module is private to it.

#include "nanobind/nanobind.h"
#include "python/src/client.h"
#include "python/src/config.h"

NB_MODULE(_core, module) {
  tandem::python::BindConfig(module);
  tandem::python::BindClient(module);
}
