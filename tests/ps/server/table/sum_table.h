// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_SERVER_TABLE_SUM_TABLE_H_
#define TANDEM_TESTS_PS_SERVER_TABLE_SUM_TABLE_H_

// A table from whose rows the sum of the gradients can be read.

#include <cmath>

#include "absl/status/statusor.h"
#include "ps/table.h"
#include "tests/ps/server/driver.h"

namespace tandem::ps::testing {

// Plain SGD with learning rate 1 from zeros: a row is minus the sum of its gradients.
inline v1::TableConfig SumTable(uint32_t workers, v1::UpdateMode mode) {
  v1::TableConfig config = TestTable("user", 1, workers, mode, Sgd(1.0f));
  *config.mutable_initializer() = Zeros();
  return config;
}
// A push of one gradient for row 42, the only row that these tests read.
inline PushOf One(float gradient, uint64_t version = 0) {
  return {.table = "user", .dim = 1, .ids = {42}, .gradients = {gradient}, .pulled_version = version};
}
// Returns that row, or NaN after an error.
inline float Read(Driver& driver, uint64_t step = 0) {
  absl::StatusOr<Rows> rows = driver.Pull(0, step, {{"user", {42}}}, /*read_only=*/true);
  return rows.ok() ? rows->slices[0][0] : NAN;
}

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_SERVER_TABLE_SUM_TABLE_H_
