// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_TABLE_H_
#define TANDEM_PS_TABLE_H_

// Functions that create and check the configuration of a table. The configuration itself is defined by the
// wire messages (proto/tandem/v1/parameter_server.proto).
//
//   v1::TableConfig users =
//       ps::EmbeddingTable("user", /*dim=*/64, ps::Adagrad(0.05f), ps::Uniform(-0.01f, 0.01f));

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/numeric/dtype.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Optimizers, which the server applies when gradients arrive. Fields that a function has no argument for keep
// the defaults of the optimizer's paper.
v1::OptimizerConfig Sgd(float learning_rate);
v1::OptimizerConfig Momentum(float learning_rate, float momentum = 0.9f);
// Duchi, Hazan and Singer, JMLR 2011: a += g^2, then w -= lr * g / (sqrt(a) + epsilon).
v1::OptimizerConfig Adagrad(float learning_rate, float initial_accumulator = 0.0f, float epsilon = 1e-10f);
// TorchRec's row-wise Adagrad: one accumulator per row, of the mean squared gradient, so 4 bytes of state.
v1::OptimizerConfig RowwiseAdagrad(float learning_rate, float initial_accumulator = 0.0f,
                                   float epsilon = 1e-10f);
// Kingma and Ba, ICLR 2015. Lazy: rows without a gradient do not change, as with PyTorch's SparseAdam; but
// each row has its own step count t, where SparseAdam counts the steps of the optimizer.
v1::OptimizerConfig Adam(float learning_rate, float beta1 = 0.9f, float beta2 = 0.999f,
                         float epsilon = 1e-8f);
// Loshchilov and Hutter, ICLR 2019: Adam with decoupled weight decay.
v1::OptimizerConfig AdamW(float learning_rate, float weight_decay = 0.01f, float beta1 = 0.9f,
                          float beta2 = 0.999f, float epsilon = 1e-8f);
// Reddi, Kale and Kumar, ICLR 2018, Algorithm 2: the second moment never decreases; no bias correction.
v1::OptimizerConfig AmsGrad(float learning_rate, float beta1 = 0.9f, float beta2 = 0.999f,
                            float epsilon = 1e-8f);
// McMahan et al., KDD 2013: FTRL-Proximal.
v1::OptimizerConfig Ftrl(float learning_rate, float l1 = 0.0f, float l2 = 0.0f,
                         float initial_accumulator = 0.1f);

// Returns the configuration of a kind of ps/optimizers, which must exist, with its default values.
v1::OptimizerConfig DefaultOptimizer(absl::string_view kind);

// Initial values of rows; see ps/policies/initializer.h.
v1::InitializerConfig Zeros();
v1::InitializerConfig Constant(float value);
v1::InitializerConfig Uniform(float low, float high);
v1::InitializerConfig Normal(float mean, float stddev);
v1::InitializerConfig TruncatedNormal(float mean, float stddev);
v1::InitializerConfig Xavier(float gain = 1.0f);
// Returns the configuration of an initializer of ps/policies, which must exist, with its default values.
v1::InitializerConfig DefaultInitializer(absl::string_view kind);

// Admission policies, which decide when an id gets a row; see ps/policies/admission.h.
v1::AdmissionConfig AdmitAlways();
v1::AdmissionConfig AdmitWithProbability(float probability);
v1::AdmissionConfig AdmitAfter(uint32_t threshold, uint64_t counters);

// Eviction policies, which decide which rows leave memory; see ps/policies/eviction.h. All except EvictAfter
// need a byte_budget. EvictAfter's `ttl` and EvictLfu's `half_life` are numbers of updates of the table.
v1::EvictionConfig EvictLru();
v1::EvictionConfig EvictLfu(uint64_t half_life = 100);
v1::EvictionConfig EvictL2Norm();
v1::EvictionConfig EvictAfter(uint64_t ttl);

// Update modes, which decide how far workers may be apart.
v1::UpdateMode Sync();
v1::UpdateMode Bounded(uint32_t staleness);
v1::UpdateMode Async();
// Global-batch aggregation (Su et al., NeurIPS 2022): `global_batch` pushes make one update; 0 stands for the
// number of workers.
v1::UpdateMode Gba(uint32_t staleness, uint32_t global_batch = 0);
// Returns the mode as text: "sync", "bounded:4", "async", "gba:8" (staleness) or "gba:8:16" (staleness,
// global batch).
std::string FormatUpdateMode(const v1::UpdateMode& mode);
// Parses the text of FormatUpdateMode. InvalidArgument names what is wrong and what is allowed.
absl::StatusOr<v1::UpdateMode> ParseUpdateMode(absl::string_view text);

// Return tables for one worker with mode SYNC and seed 0. Callers set num_workers, update_mode and seed as
// they need.
v1::TableConfig EmbeddingTable(absl::string_view name, uint32_t dim, v1::OptimizerConfig optimizer,
                               v1::InitializerConfig initializer);
// A DENSE table's rows have 1024 elements each.
v1::TableConfig DenseTable(absl::string_view name, uint64_t elements, v1::OptimizerConfig optimizer,
                           v1::InitializerConfig initializer);

// Returns the number format of the table's stored embeddings.
DType RowTypeOf(const v1::TableConfig& config);

// Returns whether the table's eviction counts how often ids occur in pushes. False if its configuration is
// invalid.
bool CountsOccurrences(const v1::TableConfig& config);

// The least byte_budget that is not 0.
inline constexpr uint64_t kMinByteBudget = uint64_t{64} << 10;
// The largest global_batch, because a table keeps an update's pushes in memory.
inline constexpr uint32_t kMaxGlobalBatch = 1 << 20;

// Checks the name of a table. InvalidArgument unless it has 1 to 128 letters, digits, '_', '-' or '.' and
// does not begin with '-' or '.'.
absl::Status ValidateTableName(absl::string_view name);

// Checks a configuration. InvalidArgument names the table, the field, its value and what is allowed. Every
// server and client calls this first, so that the rest of ps/ may rely on it. Does not fill in defaults.
absl::Status ValidateTableConfig(const v1::TableConfig& config);
// Checks an update mode alone (for SetUpdateMode). InvalidArgument names the field, but no table.
absl::Status ValidateUpdateMode(const v1::UpdateMode& mode);

}  // namespace tandem::ps

#endif  // TANDEM_PS_TABLE_H_
