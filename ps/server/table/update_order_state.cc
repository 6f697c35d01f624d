// SPDX-License-Identifier: Apache-2.0
// What snapshots hold of a table's UpdateOrder: clocks, queued pushes and the places of a GBA table.

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ps/server/table/global_batch.h"
#include "ps/server/table/replay_filter.h"
#include "ps/server/table/update_order.h"
#include "tandem/v1/durability.pb.h"

namespace tandem::ps {
namespace {

template <typename T>
std::string ToBytes(const T* values, size_t count) {
  return std::string(reinterpret_cast<const char*>(values), count * sizeof(T));
}
template <typename T>
std::vector<T> FromBytes(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

void ToProto(const UpdatePosition& position, v1::PushPlace* place) {
  place->set_update(position.update);
  place->set_stale(position.stale);
  place->set_first(position.first);
}
UpdatePosition FromProto(const v1::PushPlace& place) {
  return {.update = place.update(), .stale = place.stale(), .first = place.first()};
}

void ToProto(const TablePush& whole, uint32_t dim, const ReplayFilter* filter, v1::QueuedPush* queued) {
  const bool partly = filter != nullptr && filter->Concerns(whole.log_position);
  const TablePush rest = partly ? filter->Rest(whole, dim) : TablePush();
  const TablePush& push = partly ? rest : whole;
  queued->set_log_position(push.log_position);
  queued->set_worker(push.worker);
  queued->set_step(push.step);
  queued->set_pulled_version(push.pulled_version);
  ToProto(push.position, queued->mutable_place());
  queued->set_deferred_gradients(push.deferred_gradients);
  queued->set_learning_rate_factor(push.learning_rate_factor);
  queued->set_batch_share(push.batch_share);
  queued->set_ids(ToBytes(push.ids.data(), push.ids.size()));
  queued->set_gradients(ToBytes(push.gradients, push.ids.size() * dim));
  if (push.row_factors != nullptr) queued->set_row_factors(ToBytes(push.row_factors, push.ids.size()));
  if (push.occurrences != nullptr) queued->set_occurrences(ToBytes(push.occurrences, push.ids.size()));
}

// The arrays of a push that was restored.
struct Arrays {
  std::vector<uint64_t> ids;
  std::vector<float> gradients, row_factors;
  std::vector<uint32_t> occurrences;
};

TablePush FromProto(const v1::QueuedPush& queued) {
  const auto arrays =
      std::make_shared<Arrays>(Arrays{.ids = FromBytes<uint64_t>(queued.ids()),
                                      .gradients = FromBytes<float>(queued.gradients()),
                                      .row_factors = FromBytes<float>(queued.row_factors()),
                                      .occurrences = FromBytes<uint32_t>(queued.occurrences())});
  TablePush push;
  push.worker = queued.worker();
  push.step = queued.step();
  push.pulled_version = queued.pulled_version();
  push.position = FromProto(queued.place());
  push.deferred_gradients = queued.deferred_gradients();
  push.log_position = queued.log_position();
  push.ids = arrays->ids;
  push.gradients = arrays->gradients.data();
  push.row_factors = arrays->row_factors.empty() ? nullptr : arrays->row_factors.data();
  push.occurrences = arrays->occurrences.empty() ? nullptr : arrays->occurrences.data();
  push.learning_rate_factor = queued.learning_rate_factor();
  push.batch_share = queued.batch_share();
  push.memory_bytes = queued.ids().size() + queued.gradients().size() + queued.row_factors().size() +
                      queued.occurrences().size();
  push.memory = arrays;
  return push;
}

}  // namespace

void GlobalBatch::SaveState(uint32_t dim, const ReplayFilter* filter, v1::UpdateOrderState* state) const {
  state->set_first_update(first_);
  state->set_open_update(open_);
  state->set_in_open_update(in_open_);
  if (passed_.has_value()) state->set_passed_update(*passed_);
  for (const auto& [update, pushes] : placed_) {
    for (const TablePush& push : pushes) ToProto(push, dim, filter, state->add_placed());
  }
  for (const TablePush& push : unplaced_) ToProto(push, dim, filter, state->add_unplaced());
}

void GlobalBatch::RestoreState(const v1::UpdateOrderState& state) {
  *this = GlobalBatch();
  first_ = state.first_update();
  open_ = state.open_update();
  in_open_ = state.in_open_update();
  if (state.has_passed_update()) passed_ = state.passed_update();
  for (const v1::QueuedPush& queued : state.placed()) {
    placed_[queued.place().update()].push_back(FromProto(queued));
  }
  for (const v1::QueuedPush& queued : state.unplaced()) unplaced_.push_back(FromProto(queued));
  pushes_ = static_cast<size_t>(state.placed_size() + state.unplaced_size());
}

void GlobalBatch::AddLogPositions(std::vector<uint64_t>* positions) const {
  for (const auto& [update, pushes] : placed_) {
    for (const TablePush& push : pushes) positions->push_back(push.log_position);
  }
  for (const TablePush& push : unplaced_) positions->push_back(push.log_position);
}

v1::UpdateOrderState UpdateOrder::SaveState(uint32_t dim, const ReplayFilter* filter) const {
  v1::UpdateOrderState state;
  for (uint32_t w = 0; w < workers_.size(); ++w) {
    v1::WorkerOrder* worker = state.add_workers();
    worker->set_clock(clocks_[w]);
    worker->mutable_skipped()->Add(clocks_.skipped(w).begin(), clocks_.skipped(w).end());
    for (const auto& [step, push] : workers_[w].waiting) ToProto(push, dim, filter, worker->add_queued());
    for (const auto& [step, position] : workers_[w].positions) {
      ToProto(position, &(*worker->mutable_places())[step]);
    }
  }
  batch_.SaveState(dim, filter, &state);
  return state;
}

absl::Status UpdateOrder::CheckState(const v1::UpdateOrderState& state, uint32_t dim, uint32_t num_workers) {
  const auto check = [&](const v1::QueuedPush& push) -> absl::Status {
    const size_t ids = push.ids().size() / sizeof(uint64_t);
    const bool factors_fit = push.row_factors().empty() || push.row_factors().size() == ids * sizeof(float);
    const bool occurrences_fit =
        push.occurrences().empty() || push.occurrences().size() == ids * sizeof(uint32_t);
    if (push.worker() < num_workers && push.ids().size() == ids * sizeof(uint64_t) &&
        push.gradients().size() == ids * dim * sizeof(float) && factors_fit && occurrences_fit) {
      return absl::OkStatus();
    }
    return absl::DataLossError(
        absl::StrCat("a queued push of worker ", push.worker(), " of ", num_workers, " has ",
                     push.ids().size(), " bytes of ids, ", push.gradients().size(), " of gradients of ", dim,
                     " values, ", push.row_factors().size(), " of row factors and ",
                     push.occurrences().size(), " of occurrences, which do not fit together"));
  };
  if (static_cast<uint32_t>(state.workers_size()) > num_workers) {
    return absl::DataLossError(
        absl::StrCat("clocks of ", state.workers_size(), " workers for a table of ", num_workers));
  }
  for (int w = 0; w < state.workers_size(); ++w) {
    for (const v1::QueuedPush& push : state.workers(w).queued()) {
      TANDEM_RETURN_IF_ERROR(check(push));
      if (push.worker() == static_cast<uint32_t>(w)) continue;
      return absl::DataLossError(
          absl::StrCat("a push of worker ", push.worker(), " is queued for worker ", w));
    }
  }
  for (const v1::QueuedPush& push : state.placed()) TANDEM_RETURN_IF_ERROR(check(push));
  for (const v1::QueuedPush& push : state.unplaced()) TANDEM_RETURN_IF_ERROR(check(push));
  return absl::OkStatus();
}

uint64_t UpdateOrder::RestoreState(const v1::UpdateOrderState& state) {
  uint64_t bytes = 0;
  for (uint32_t w = 0; w < workers_.size() && w < static_cast<uint32_t>(state.workers_size()); ++w) {
    const v1::WorkerOrder& from = state.workers(static_cast<int>(w));
    Worker& to = workers_[w];
    to = Worker{};
    clocks_.Restore(w, from.clock(), std::set<uint64_t>(from.skipped().begin(), from.skipped().end()));
    for (const v1::QueuedPush& queued : from.queued()) {
      TablePush push = FromProto(queued);
      bytes += push.memory_bytes;
      to.waiting.emplace(push.deferred_gradients ? 0 : push.step, std::move(push));
    }
    for (const auto& [step, place] : from.places()) to.positions[step] = FromProto(place);
  }
  batch_.RestoreState(state);
  batch_.ForEach([&bytes](const TablePush& push) { bytes += push.memory_bytes; });
  return bytes;
}

std::vector<uint64_t> UpdateOrder::QueuedPositions() const {
  std::vector<uint64_t> positions;
  for (const Worker& worker : workers_) {
    for (const auto& [step, push] : worker.waiting) positions.push_back(push.log_position);
  }
  batch_.AddLogPositions(&positions);
  return positions;
}

}  // namespace tandem::ps
