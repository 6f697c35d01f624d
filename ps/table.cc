// SPDX-License-Identifier: Apache-2.0
#include "ps/table.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "ps/optimizers/optimizer.h"
#include "ps/optimizers/registry.h"
#include "ps/policies/admission.h"
#include "ps/policies/eviction.h"
#include "ps/policies/initializer.h"
#include "ps/policies/registry.h"

namespace tandem::ps {
namespace {

constexpr uint32_t kMaxRanks = 65536;  // of the workers of a job and of processes from outside
constexpr size_t kMaxNameLength = 128;
constexpr uint32_t kMaxDim = 65536;
// A DENSE table is allocated when it is created, so this bounds what one request may allocate: 16 GiB of
// weights.
constexpr uint64_t kMaxDenseElements = uint64_t{1} << 32;

v1::OptimizerConfig OptimizerOf(const char* kind, float learning_rate) {
  v1::OptimizerConfig config;
  config.set_kind(kind);
  config.set_learning_rate(learning_rate);
  return config;
}

v1::InitializerConfig InitializerOf(const char* kind) {
  v1::InitializerConfig config;
  config.set_kind(kind);
  return config;
}

v1::EvictionConfig EvictionOf(const char* kind) {
  v1::EvictionConfig config;
  config.set_kind(kind);
  return config;
}

v1::TableConfig TableOf(absl::string_view name, v1::TableConfig::Kind kind, v1::OptimizerConfig optimizer,
                        v1::InitializerConfig initializer) {
  v1::TableConfig config;
  config.set_name(std::string(name));
  config.set_kind(kind);
  *config.mutable_optimizer() = std::move(optimizer);
  *config.mutable_initializer() = std::move(initializer);
  config.set_num_workers(1);
  return config;
}

absl::Status ValidateShape(const v1::TableConfig& config) {
  if (!v1::TableConfig::Kind_IsValid(config.kind())) {
    return absl::InvalidArgumentError(
        absl::StrCat("kind is ", static_cast<int>(config.kind()), "; it must be EMBEDDING (0) or DENSE (1)"));
  }
  if (config.dim() < 1 || config.dim() > kMaxDim) {
    return absl::InvalidArgumentError(
        absl::StrCat("dim is ", config.dim(), "; it must be in [1, ", kMaxDim, "]"));
  }
  if (config.kind() == v1::TableConfig::DENSE) {
    if (config.elements() < 1 || config.elements() > kMaxDenseElements) {
      return absl::InvalidArgumentError(absl::StrCat("elements is ", config.elements(),
                                                     "; a DENSE table must have 1 to ", kMaxDenseElements,
                                                     " (an EMBEDDING table may be larger)"));
    }
  } else if (config.elements() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "elements is ", config.elements(),
        "; only a DENSE table has it (rows of an EMBEDDING table appear on first touch), so leave it 0"));
  }
  return absl::OkStatus();
}

// Checks the fields that only EMBEDDING tables may set.
absl::Status ValidatePolicies(const v1::TableConfig& config) {
  if (!v1::TableConfig::RowType_IsValid(config.row_type())) {
    return absl::InvalidArgumentError(
        absl::StrCat("row_type is ", static_cast<int>(config.row_type()), "; it must be F32, F16 or BF16"));
  }
  if (config.stochastic_rounding() && config.row_type() == v1::TableConfig::F32) {
    return absl::InvalidArgumentError("stochastic_rounding is set; only F16 and BF16 rows are rounded");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Admission> admission, MakeAdmission(config.admission()));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Eviction> eviction, MakeEviction(config.eviction()));
  if (config.kind() == v1::TableConfig::DENSE) {
    if (config.row_type() == v1::TableConfig::F32 && admission->at_pull() && eviction == nullptr &&
        config.byte_budget() == 0 && !config.spill()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "row_type, admission, eviction, byte_budget and spill are for EMBEDDING tables; a DENSE table has "
        "all its rows, as F32");
  }
  if (config.spill() && (eviction == nullptr || eviction->sweeps())) {
    return absl::InvalidArgumentError(absl::StrCat("spill is set, but eviction.kind is '",
                                                   eviction == nullptr ? "none" : eviction->kind(),
                                                   "'; which rows go to disk when byte_budget is used up, ",
                                                   EvictionKindsText(/*for_budget_only=*/true), " must say"));
  }
  if (config.byte_budget() != 0 && eviction == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "byte_budget is set, but eviction.kind does not say which rows leave when it is used up: ",
        EvictionKindsText(/*for_budget_only=*/false)));
  }
  if (config.byte_budget() == 0 && eviction != nullptr && !eviction->sweeps()) {
    return absl::InvalidArgumentError(absl::StrCat("byte_budget is 0; eviction '", eviction->kind(),
                                                   "' needs one: it evicts when the budget is used up"));
  }
  if (config.byte_budget() != 0 && config.byte_budget() < kMinByteBudget) {
    return absl::InvalidArgumentError(
        absl::StrCat("byte_budget is ", config.byte_budget(), "; it must be at least ", kMinByteBudget));
  }
  return absl::OkStatus();
}

absl::Status ValidateFields(const v1::TableConfig& config) {
  TANDEM_RETURN_IF_ERROR(ValidateTableName(config.name()));
  TANDEM_RETURN_IF_ERROR(ValidateShape(config));
  TANDEM_RETURN_IF_ERROR(MakeOptimizer(config.optimizer()));
  TANDEM_RETURN_IF_ERROR(MakeInitializer(config.initializer()));
  TANDEM_RETURN_IF_ERROR(ValidatePolicies(config));
  TANDEM_RETURN_IF_ERROR(ValidateUpdateMode(config.update_mode()));
  if (config.num_workers() < 1) {
    return absl::InvalidArgumentError(
        "num_workers is 0; it must be the number of workers that push to the table");
  }
  if (config.first_worker() >= kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("first_worker is ", config.first_worker(), "; it must be less than ", kMaxRanks));
  }
  return absl::OkStatus();
}

}  // namespace

v1::OptimizerConfig Sgd(float learning_rate) { return OptimizerOf("sgd", learning_rate); }

v1::OptimizerConfig Momentum(float learning_rate, float momentum) {
  v1::OptimizerConfig config = OptimizerOf("momentum", learning_rate);
  config.set_momentum(momentum);
  return config;
}

v1::OptimizerConfig Adagrad(float learning_rate, float initial_accumulator, float epsilon) {
  v1::OptimizerConfig config = OptimizerOf("adagrad", learning_rate);
  config.set_initial_accumulator(initial_accumulator);
  config.set_epsilon(epsilon);
  return config;
}

v1::OptimizerConfig RowwiseAdagrad(float learning_rate, float initial_accumulator, float epsilon) {
  v1::OptimizerConfig config = OptimizerOf("rowwise_adagrad", learning_rate);
  config.set_initial_accumulator(initial_accumulator);
  config.set_epsilon(epsilon);
  return config;
}

v1::OptimizerConfig Adam(float learning_rate, float beta1, float beta2, float epsilon) {
  v1::OptimizerConfig config = OptimizerOf("adam", learning_rate);
  config.set_beta1(beta1);
  config.set_beta2(beta2);
  config.set_epsilon(epsilon);
  return config;
}

v1::OptimizerConfig AdamW(float learning_rate, float weight_decay, float beta1, float beta2, float epsilon) {
  v1::OptimizerConfig config = Adam(learning_rate, beta1, beta2, epsilon);
  config.set_kind("adamw");
  config.set_weight_decay(weight_decay);
  return config;
}

v1::OptimizerConfig AmsGrad(float learning_rate, float beta1, float beta2, float epsilon) {
  v1::OptimizerConfig config = Adam(learning_rate, beta1, beta2, epsilon);
  config.set_kind("amsgrad");
  return config;
}

v1::OptimizerConfig Ftrl(float learning_rate, float l1, float l2, float initial_accumulator) {
  v1::OptimizerConfig config = OptimizerOf("ftrl", learning_rate);
  config.set_l1(l1);
  config.set_l2(l2);
  config.set_initial_accumulator(initial_accumulator);
  config.set_learning_rate_power(-0.5f);
  return config;
}

v1::OptimizerConfig DefaultOptimizer(absl::string_view kind) { return Optimizers().Default(kind); }

v1::InitializerConfig Zeros() { return InitializerOf("zeros"); }

v1::InitializerConfig Constant(float value) {
  v1::InitializerConfig config = InitializerOf("constant");
  config.set_value(value);
  return config;
}

v1::InitializerConfig Uniform(float low, float high) {
  v1::InitializerConfig config = InitializerOf("uniform");
  config.set_low(low);
  config.set_high(high);
  return config;
}

v1::InitializerConfig Normal(float mean, float stddev) {
  v1::InitializerConfig config = InitializerOf("normal");
  config.set_mean(mean);
  config.set_stddev(stddev);
  return config;
}

v1::InitializerConfig TruncatedNormal(float mean, float stddev) {
  v1::InitializerConfig config = InitializerOf("truncated_normal");
  config.set_mean(mean);
  config.set_stddev(stddev);
  return config;
}

v1::InitializerConfig Xavier(float gain) {
  v1::InitializerConfig config = InitializerOf("xavier");
  config.set_gain(gain);
  return config;
}

v1::InitializerConfig DefaultInitializer(absl::string_view kind) { return Initializers().Default(kind); }

v1::AdmissionConfig AdmitAlways() {
  v1::AdmissionConfig config;
  config.set_kind("always");
  return config;
}

v1::AdmissionConfig AdmitWithProbability(float probability) {
  v1::AdmissionConfig config;
  config.set_kind("probability");
  config.set_probability(probability);
  return config;
}

v1::AdmissionConfig AdmitAfter(uint32_t threshold, uint64_t counters) {
  v1::AdmissionConfig config;
  config.set_kind("count");
  config.set_threshold(threshold);
  config.set_counters(counters);
  return config;
}

v1::EvictionConfig EvictLru() { return EvictionOf("lru"); }
v1::EvictionConfig EvictL2Norm() { return EvictionOf("l2_norm"); }

v1::EvictionConfig EvictLfu(uint64_t half_life) {
  v1::EvictionConfig config = EvictionOf("lfu");
  config.set_half_life(half_life);
  return config;
}

v1::EvictionConfig EvictAfter(uint64_t ttl) {
  v1::EvictionConfig config = EvictionOf("ttl");
  config.set_ttl(ttl);
  return config;
}

v1::UpdateMode Sync() {
  v1::UpdateMode mode;
  mode.set_kind(v1::UpdateMode::SYNC);
  return mode;
}

v1::UpdateMode Bounded(uint32_t staleness) {
  v1::UpdateMode mode;
  mode.set_kind(v1::UpdateMode::BOUNDED);
  mode.set_staleness(staleness);
  return mode;
}

v1::UpdateMode Async() {
  v1::UpdateMode mode;
  mode.set_kind(v1::UpdateMode::ASYNC);
  return mode;
}

v1::UpdateMode Gba(uint32_t staleness, uint32_t global_batch) {
  v1::UpdateMode mode;
  mode.set_kind(v1::UpdateMode::GBA);
  mode.set_staleness(staleness);
  mode.set_global_batch(global_batch);
  return mode;
}

std::string FormatUpdateMode(const v1::UpdateMode& mode) {
  switch (mode.kind()) {
    case v1::UpdateMode::SYNC:
      return "sync";
    case v1::UpdateMode::BOUNDED:
      return absl::StrCat("bounded:", mode.staleness());
    case v1::UpdateMode::GBA:
      return absl::StrCat("gba:", mode.staleness(),
                          mode.global_batch() == 0 ? "" : absl::StrCat(":", mode.global_batch()));
    default:
      return "async";
  }
}

absl::StatusOr<v1::UpdateMode> ParseUpdateMode(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ':');
  std::vector<uint32_t> numbers(words.size() - 1);
  bool numeric = true;
  for (size_t i = 1; i < words.size(); ++i) numeric = numeric && absl::SimpleAtoi(words[i], &numbers[i - 1]);
  v1::UpdateMode mode;
  if (words[0] == "sync" && numbers.empty()) {
    mode = Sync();
  } else if (words[0] == "async" && numbers.empty()) {
    mode = Async();
  } else if (words[0] == "bounded" && numeric && numbers.size() == 1) {
    mode = Bounded(numbers[0]);
  } else if (words[0] == "gba" && numeric && (numbers.size() == 1 || numbers.size() == 2)) {
    mode = Gba(numbers[0], numbers.size() == 2 ? numbers[1] : 0);
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "update mode '", text,
        "' is none of sync, bounded:STALENESS, async, gba:STALENESS, gba:STALENESS:GLOBAL_BATCH"));
  }
  TANDEM_RETURN_IF_ERROR(ValidateUpdateMode(mode));
  return mode;
}

v1::TableConfig EmbeddingTable(absl::string_view name, uint32_t dim, v1::OptimizerConfig optimizer,
                               v1::InitializerConfig initializer) {
  v1::TableConfig config =
      TableOf(name, v1::TableConfig::EMBEDDING, std::move(optimizer), std::move(initializer));
  config.set_dim(dim);
  return config;
}

v1::TableConfig DenseTable(absl::string_view name, uint64_t elements, v1::OptimizerConfig optimizer,
                           v1::InitializerConfig initializer) {
  // A row of 4 KiB is long enough to stream, and short enough to spread a model of a few thousand elements
  // over the servers.
  constexpr uint32_t kDenseDim = 1024;
  v1::TableConfig config =
      TableOf(name, v1::TableConfig::DENSE, std::move(optimizer), std::move(initializer));
  config.set_dim(kDenseDim);
  config.set_elements(elements);
  return config;
}

DType RowTypeOf(const v1::TableConfig& config) {
  switch (config.row_type()) {
    case v1::TableConfig::F16:
      return DType::kF16;
    case v1::TableConfig::BF16:
      return DType::kBF16;
    default:
      return DType::kF32;
  }
}

bool CountsOccurrences(const v1::TableConfig& config) {
  const absl::StatusOr<std::unique_ptr<Eviction>> eviction = MakeEviction(config.eviction());
  return eviction.ok() && *eviction != nullptr && (*eviction)->needs_count();
}

absl::Status ValidateUpdateMode(const v1::UpdateMode& mode) {
  if (!v1::UpdateMode::Kind_IsValid(mode.kind())) {
    return absl::InvalidArgumentError(
        absl::StrCat("update_mode.kind is ", static_cast<int>(mode.kind()),
                     "; it must be SYNC (0), BOUNDED (1), ASYNC (2) or GBA (3)"));
  }
  const bool gba = mode.kind() == v1::UpdateMode::GBA;
  if (mode.kind() == v1::UpdateMode::BOUNDED && mode.staleness() < 1) {
    return absl::InvalidArgumentError(
        "update_mode.staleness is 0; BOUNDED needs at least 1 (0 would be SYNC)");
  }
  if (mode.kind() != v1::UpdateMode::BOUNDED && !gba && mode.staleness() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("update_mode.staleness is ", mode.staleness(),
                                                   "; only BOUNDED and GBA have a staleness, so leave it 0"));
  }
  if (mode.global_batch() > (gba ? kMaxGlobalBatch : 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("update_mode.global_batch is ", mode.global_batch(),
                     gba ? absl::StrCat("; at most ", kMaxGlobalBatch, " pushes make an update")
                         : "; only GBA has a global batch, so leave it 0"));
  }
  return absl::OkStatus();
}

absl::Status ValidateTableName(absl::string_view name) {
  // A table's name becomes part of file names (checkpoints) and of metric labels.
  bool ok = !name.empty() && name.size() <= kMaxNameLength && name[0] != '.' && name[0] != '-';
  for (const char c : name) ok = ok && (absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.');
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the name must be 1 to ", kMaxNameLength,
                   " letters, digits, '_', '-' or '.', and not begin with '-' or '.'"));
}

absl::Status ValidateTableConfig(const v1::TableConfig& config) {
  // A name from the wire may be anything, so the message shows a truncated and escaped copy.
  return Annotate(
      ValidateFields(config),
      absl::StrCat("table '", absl::CHexEscape(absl::string_view(config.name()).substr(0, kMaxNameLength)),
                   "'"));
}

}  // namespace tandem::ps
