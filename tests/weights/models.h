// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_WEIGHTS_MODELS_H_
#define TANDEM_TESTS_WEIGHTS_MODELS_H_

// Small models for the tests of this folder.

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "weights/model/model.h"

namespace tandem::weights::testing {

// A deadline that no call of a test reaches.
inline absl::Time Soon() { return MonotonicNow() + absl::Seconds(60); }

// Returns a version of the model "policy", all of whose values are `value`.
inline std::shared_ptr<Model> Uniform(ModelVersion version, float value, size_t rows = 3) {
  const std::vector<float> weight(rows * 2, value), bias = {value};
  auto model = MakeModel({{"weight", {static_cast<int64_t>(rows), 2}, weight}, {"bias", {}, bias}});
  TANDEM_CHECK_MSG(model.ok(), model.status().ToString());
  (*model)->info.model = "policy";
  (*model)->info.publisher = "learner/0";
  (*model)->info.version = version;
  return *std::move(model);
}

// Returns the value of all values of `model`, or -1 if they differ: half a model.
inline float ValueOf(const Model& model) {
  for (const float value : model.values()) {
    if (value != model.values()[0]) return -1;
  }
  return model.values()[0];
}

}  // namespace tandem::weights::testing

#endif  // TANDEM_TESTS_WEIGHTS_MODELS_H_
