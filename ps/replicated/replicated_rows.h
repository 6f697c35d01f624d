// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_REPLICATED_REPLICATED_ROWS_H_
#define TANDEM_PS_REPLICATED_REPLICATED_ROWS_H_

// The rows of one table that every worker holds a replica of. The workers sum the rows' gradients, and each
// worker then runs the table's own optimizer on the sum. All replicas therefore keep the same bits, and no
// gradient is ever computed from an old row. (TorchRec's data-parallel sharding and HugeCTR's hybrid
// embedding replicate in the same way; here the unit is a row and not a table.)

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ps/optimizers/optimizer.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

// The replicated rows that a step changes.
enum class L2Scope {
  kTouched,  // rows that some worker's batch contains: the servers' semantics
  kAll,  // every row, with a gradient of 0 if no batch contains it, so that L2 decays all rows in each step
};

// Rows with their optimizer state, as they move between workers and servers.
struct MovedRows {
  std::vector<uint64_t> ids;
  std::vector<float> weights;  // [ids x dim]
  std::vector<float> state;    // [ids x Optimizer::state_floats(dim)]
};

// The replicated rows of a table. A row is addressed by its slot, which is the same number on every worker as
// long as all workers make the same calls of Change.
//
// Find, ids and size may run in one thread while another one calls Touch, Apply, gradients and weights.
// Change needs every other thread to be out of this object.
class ReplicatedRows {
 public:
  static constexpr uint32_t kAbsent = ~uint32_t{0};

  // Returns an object without rows. InvalidArgument: the optimizer of `config` is invalid, or its
  // clip_global_norm is set, which needs the norm of a push that replicated rows are not part of.
  static absl::StatusOr<std::unique_ptr<ReplicatedRows>> Create(const v1::TableConfig& config,
                                                                L2Scope l2_scope);

  size_t dim() const { return dim_; }
  size_t state_floats() const { return state_floats_; }
  size_t size() const { return ids_.size(); }
  // Memory that one row takes in a worker: weights, state, gradient, the index and scratch.
  uint64_t bytes_per_row() const;

  // Returns the slot of `id`, or kAbsent.
  uint32_t Find(uint64_t id) const {
    const auto found = slots_.find(id);
    return found == slots_.end() ? kAbsent : found->second;
  }
  // Begins to load what Find(id) reads into the cache.
  void Prefetch(uint64_t id) const { slots_.prefetch(id); }
  // Returns the ids by slot.
  absl::Span<const uint64_t> ids() const { return ids_; }
  // Returns the row's current values, [dim].
  const float* weights(uint32_t slot) const { return weights_.data() + size_t{slot} * dim_; }

  // Returns the gradients of the step, [size x dim], to which the caller adds those of its batch.
  float* gradients() { return exchange_.data(); }
  // Says that this worker's batch contains the row. Call it once for each distinct row of a batch, before the
  // workers sum.
  void Touch(uint32_t slot) {
    exchange_[ids_.size() * dim_ + slot] = 1.0f;
    touched_.push_back(slot);
  }
  // Adds gradient[dim] to the gradient of the step, and touches the row.
  void AddGradient(uint32_t slot, const float* gradient);
  // Returns what the workers must sum between Touch and Apply: gradients [size x dim], followed by the number
  // of workers that have touched the row, [size].
  absl::Span<float> exchange() { return absl::MakeSpan(exchange_); }
  // The other way to sum: every worker takes the gradients of the rows that its batch contains, and adds
  // those of all workers, its own included, in rank order. The sum has the same bits as that of exchange() in
  // rank order, but costs less if few rows are touched.
  //
  // Returns the number of rows that TakeTouched would take.
  size_t touched() const { return touched_.size(); }
  // Number of floats of a packed row.
  size_t packed_floats() const { return dim_ + 1; }
  // Appends the touched rows, [touched() x packed_floats()], to `packed` and removes them from exchange().
  void TakeTouched(std::vector<float>* packed);
  // Adds rows that a worker has packed. DataLoss: `packed` is malformed.
  absl::Status AddTouched(absl::Span<const float> packed);
  // Runs the optimizer and zeroes the gradients. `update` is the number of the update as the table's warm-up
  // counts it, from 1. InvalidArgument: a gradient is not finite; no row has changed then.
  absl::Status Apply(float learning_rate_factor, uint64_t update);

  // Returns the rows `slots` with their state.
  MovedRows Read(absl::Span<const uint32_t> slots) const;
  // Removes the ids of `removed` (absent ones are ignored) and appends the rows of `added`, which must be
  // absent and distinct. Slots of the remaining rows change, but their order does not. Drops gradients that
  // are not applied. InvalidArgument: the sizes of `added` do not fit the table, or one of its ids is
  // replicated and not among `removed`; nothing has changed then.
  absl::Status Change(absl::Span<const uint64_t> removed, const MovedRows& added);

  // Returns for each slot the sum over steps of the number of workers whose batch contained the row, since
  // ForgetTouches or the row's arrival.
  absl::Span<const float> touches() const { return touches_; }
  // Returns the number of calls of Apply since ForgetTouches.
  uint64_t steps() const { return steps_; }
  void ForgetTouches();

 private:
  ReplicatedRows(std::unique_ptr<Optimizer> optimizer, size_t dim, L2Scope l2_scope);

  const std::unique_ptr<Optimizer> optimizer_;
  const size_t dim_;
  const size_t state_floats_;
  const L2Scope l2_scope_;
  absl::flat_hash_map<uint64_t, uint32_t> slots_;
  std::vector<uint64_t> ids_;      // by slot
  std::vector<float> weights_;     // [size x dim]
  std::vector<float> state_;       // [size x state_floats]
  std::vector<float> exchange_;    // gradients [size x dim], then counts [size]
  std::vector<uint32_t> touched_;  // by this worker, since the last Apply
  std::vector<float> touches_;     // by slot
  uint64_t steps_ = 0;
  std::vector<RowUpdate> updates_;  // scratch of Apply
  std::vector<uint32_t> applied_;   // their slots
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_REPLICATED_REPLICATED_ROWS_H_
