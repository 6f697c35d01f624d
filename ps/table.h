#ifndef TANDEM_PS_TABLE_H_
#define TANDEM_PS_TABLE_H_

// What a table is, as users write it. The wire messages (proto/tandem/v1/parameter_server.proto) are the one
// definition of a table's configuration; the functions here make writing them short and check them in one
// place.
//
//   v1::TableConfig users = ps::EmbeddingTable("user", /*dim=*/64, ps::Adagrad(0.05f), ps::Uniform(-0.01f,
//   0.01f));

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/numeric/dtype.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Optimizers, applied by the server when gradients arrive. Fields not named keep the defaults of their
// papers.
v1::OptimizerConfig Sgd(float learning_rate);
v1::OptimizerConfig Momentum(float learning_rate, float momentum = 0.9f);
// Duchi, Hazan and Singer, JMLR 2011. w -= lr * g / (sqrt(a) + epsilon), a += g^2 first.
v1::OptimizerConfig Adagrad(float learning_rate, float initial_accumulator = 0.0f, float epsilon = 1e-10f);
// One accumulator a row, of the mean squared gradient (TorchRec's row-wise Adagrad): 4 bytes of state a row.
v1::OptimizerConfig RowwiseAdagrad(float learning_rate, float initial_accumulator = 0.0f,
                                   float epsilon = 1e-10f);
// Kingma and Ba, ICLR 2015; lazily, with each row's own step count (as SparseAdam): untouched rows do not
// move.
v1::OptimizerConfig Adam(float learning_rate, float beta1 = 0.9f, float beta2 = 0.999f,
                         float epsilon = 1e-8f);
// Adam with decoupled weight decay: Loshchilov and Hutter, ICLR 2019.
v1::OptimizerConfig AdamW(float learning_rate, float weight_decay = 0.01f, float beta1 = 0.9f,
                          float beta2 = 0.999f, float epsilon = 1e-8f);
// Reddi, Kale and Kumar, ICLR 2018, Algorithm 2: the second average never falls; without bias correction.
v1::OptimizerConfig AmsGrad(float learning_rate, float beta1 = 0.9f, float beta2 = 0.999f,
                            float epsilon = 1e-8f);
// FTRL-Proximal, McMahan et al., KDD 2013.
v1::OptimizerConfig Ftrl(float learning_rate, float l1 = 0.0f, float l2 = 0.0f,
                         float initial_accumulator = 0.1f);

v1::InitializerConfig Zeros();
v1::InitializerConfig Constant(float value);
v1::InitializerConfig Uniform(float low, float high);
v1::InitializerConfig Normal(float mean, float stddev);
v1::InitializerConfig TruncatedNormal(float mean, float stddev);
v1::InitializerConfig Xavier(float gain = 1.0f);

// Which ids get a row (ps/admission).
v1::AdmissionConfig AdmitAlways();
v1::AdmissionConfig AdmitWithProbability(float probability);
v1::AdmissionConfig AdmitAfter(uint32_t threshold, uint64_t counters);

// Which rows leave (ps/eviction). All but EvictAfter need a byte_budget.
v1::EvictionConfig EvictLru();
v1::EvictionConfig EvictLfu();
v1::EvictionConfig EvictL2Norm();
v1::EvictionConfig EvictAfter(uint64_t ttl);

v1::UpdateMode Sync();
v1::UpdateMode Bounded(uint32_t staleness);
v1::UpdateMode Async();
// Global-batch aggregation (Su et al., NeurIPS 2022). `global_batch` pushes are an update; 0: as many as
// there are workers.
v1::UpdateMode Gba(uint32_t staleness, uint32_t global_batch = 0);
// "sync", "bounded:4", "async", "gba:8" (staleness) or "gba:8:16" (staleness, global batch).
std::string FormatUpdateMode(const v1::UpdateMode& mode);
// The same back. InvalidArgument names what is wrong and what there is.
absl::StatusOr<v1::UpdateMode> ParseUpdateMode(absl::string_view text);

// Tables for one worker, SYNC, seed 0: change num_workers, update_mode and seed to taste.
v1::TableConfig EmbeddingTable(absl::string_view name, uint32_t dim, v1::OptimizerConfig optimizer,
                               v1::InitializerConfig initializer);
// Rows of 1024 elements.
v1::TableConfig DenseTable(absl::string_view name, uint64_t elements, v1::OptimizerConfig optimizer,
                           v1::InitializerConfig initializer);

// The number format of the table's stored embeddings.
DType RowTypeOf(const v1::TableConfig& config);

// OK, or InvalidArgument naming the table, the field, its value and what is allowed. Every server and client
// calls it before anything else, so that the rest of ps/ may rely on it. Fills in no defaults.
absl::Status ValidateTableConfig(const v1::TableConfig& config);
// The same for an update mode alone (SetUpdateMode); names the field only.
absl::Status ValidateUpdateMode(const v1::UpdateMode& mode);

}  // namespace tandem::ps

#endif  // TANDEM_PS_TABLE_H_
