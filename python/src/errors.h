// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_ERRORS_H_
#define TANDEM_PYTHON_SRC_ERRORS_H_

// Turns a status into a Python exception. All functions require the GIL.

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::python {

// Raises the exception of tandem.errors that belongs to the status's code, with the status's message.
// `status` is not OK.
[[noreturn]] void Raise(const absl::Status& status);

inline void RaiseIfError(const absl::Status& status) {
  if (!status.ok()) Raise(status);
}

template <typename T>
T ValueOrRaise(absl::StatusOr<T> value) {
  if (!value.ok()) Raise(value.status());
  return *std::move(value);
}

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_ERRORS_H_
