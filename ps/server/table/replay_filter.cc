// SPDX-License-Identifier: Apache-2.0
#include "ps/server/table/replay_filter.h"

namespace tandem::ps {

TablePush ReplayFilter::Rest(const TablePush& push, uint32_t dim) const {
  struct Arrays {
    std::vector<uint64_t> ids;
    std::vector<float> gradients, row_factors;
    std::vector<uint32_t> occurrences;
  };
  const auto arrays = std::make_shared<Arrays>();
  for (size_t i = 0; i < push.ids.size(); ++i) {
    if (Contains(push.ids[i], push.log_position)) continue;
    arrays->ids.push_back(push.ids[i]);
    const float* const gradient = push.gradients + i * dim;
    arrays->gradients.insert(arrays->gradients.end(), gradient, gradient + dim);
    if (push.row_factors != nullptr) arrays->row_factors.push_back(push.row_factors[i]);
    if (push.occurrences != nullptr) arrays->occurrences.push_back(push.occurrences[i]);
  }
  TablePush rest;
  rest.worker = push.worker;
  rest.step = push.step;
  rest.pulled_version = push.pulled_version;
  rest.position = push.position;
  rest.deferred_gradients = push.deferred_gradients;
  rest.log_position = push.log_position;
  rest.ids = arrays->ids;
  rest.gradients = arrays->gradients.data();
  rest.learning_rate_factor = push.learning_rate_factor;
  rest.batch_share = push.batch_share;
  rest.memory_bytes = push.memory_bytes;
  rest.row_factors = push.row_factors == nullptr ? nullptr : arrays->row_factors.data();
  rest.occurrences = push.occurrences == nullptr ? nullptr : arrays->occurrences.data();
  rest.memory = arrays;
  rest.traced = push.traced;
  return rest;
}

}  // namespace tandem::ps
