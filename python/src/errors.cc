// SPDX-License-Identifier: Apache-2.0
#include "python/src/errors.h"

#include <string>

#include "nanobind/nanobind.h"
#include "nanobind/stl/string.h"
#include "python/src/job_member.h"

namespace nb = nanobind;

namespace tandem::python {

void Raise(const absl::Status& status) {
  JobMember::OnRaise();
  const nb::object error =
      nb::module_::import_("tandem.errors")
          .attr("from_status")(static_cast<int>(status.code()), std::string(status.message()));
  PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

}  // namespace tandem::python
