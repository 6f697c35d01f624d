// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/training_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/status.h"
#include "ps/table.h"

namespace tandem::worker {
namespace {

v1::TableConfig MakeTable(const JobSpec& job, const TableSpec& spec, int dim, int num_workers) {
  v1::TableConfig config =
      ps::EmbeddingTable(spec.name, static_cast<uint32_t>(dim), spec.optimizer, spec.initializer);
  config.set_seed(Mix64(job.train.seed, HashBytes(spec.name)));
  *config.mutable_update_mode() = job.train.mode;
  config.set_num_workers(static_cast<uint32_t>(num_workers));
  config.set_row_type(spec.row_type);
  config.set_stochastic_rounding(spec.stochastic_rounding);
  *config.mutable_admission() = spec.admission;
  *config.mutable_eviction() = spec.eviction;
  config.set_byte_budget(spec.byte_budget);
  config.set_spill(spec.spill);
  return config;
}

// Says why the rows of a table with `placement: auto` stay on the servers; empty if they need not.
std::string WhyNotReplicated(const JobSpec& job, const TableSpec& spec) {
  if (job.pooling == PoolingPlace::kServer) return "embedding.pooling is 'server'";
  if (spec.cache.bytes > 0) return "it has a cache";
  if (spec.optimizer.clip_global_norm() > 0) return "its optimizer has a clip_global_norm";
  return "";
}

// Fills in the placement of the features of the last table of the plan.
absl::Status PlaceFeatures(const JobSpec& job, const TableSpec& spec, const Schema& schema,
                           TrainingPlan* plan) {
  LookupTable& table = plan->lookup.tables.back();
  const std::string why_not = WhyNotReplicated(job, spec);
  ps::Placement usual = spec.placement;
  if (usual == ps::Placement::kAuto && !why_not.empty()) {
    usual = ps::Placement::kSharded;
    if (job.train.mode.kind() != v1::UpdateMode::SYNC) {
      plan->notes.push_back(absl::StrCat("table '", spec.name, "': all rows stay on the servers, because ",
                                         why_not, " (placement: auto)"));
    }
  }
  table.placements.assign(table.features.size(), usual);
  const auto place = [&](const std::vector<std::string>& columns, ps::Placement placement,
                         absl::string_view field) -> absl::Status {
    for (const std::string& column : columns) {
      size_t k = 0;
      while (k < table.features.size() && schema.sparse[table.features[k]].column != column) ++k;
      if (k == table.features.size()) {
        const std::string known = absl::StrJoin(
            table.features, ", ", [&](std::string* out, int f) { *out += schema.sparse[f].column; });
        return absl::InvalidArgumentError(
            absl::StrCat("table '", spec.name, "': ", field, " names '", column,
                         "', which is not a feature of the table; there are: ", known));
      }
      table.placements[k] = placement;
    }
    return absl::OkStatus();
  };
  TANDEM_RETURN_IF_ERROR(place(spec.replicated_features, ps::Placement::kReplicated, "replicated_features"));
  TANDEM_RETURN_IF_ERROR(place(spec.sharded_features, ps::Placement::kSharded, "sharded_features"));
  ps::ReplicatedTableOptions options{
      .config = plan->tables.back(), .replicated = false, .by_staleness = false};
  options.l2_scope = spec.l2_scope;
  options.starts_synchronously = spec.cache.bytes == 0;  // mode SYNC allows no cache
  for (const ps::Placement placement : table.placements) {
    options.replicated = options.replicated || placement != ps::Placement::kSharded;
    options.by_staleness = options.by_staleness || placement == ps::Placement::kAuto;
  }
  plan->replicas.push_back(std::move(options));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainingPlan> PlanJob(const JobSpec& job, const Schema& schema, const Model& model,
                                     int num_workers) {
  TrainingPlan plan;
  const int num_features = static_cast<int>(schema.sparse.size());
  plan.lookup.num_features = num_features;
  plan.lookup.dim = job.model.dim;
  plan.lookup.mean = job.combiner == Combiner::kMean;
  plan.lookup.square_sums = model.NeedsSquareSums();
  plan.lookup.server_pooling = job.pooling == PoolingPlace::kServer;
  if (plan.lookup.server_pooling && plan.lookup.square_sums) {
    return absl::InvalidArgumentError(
        absl::StrCat("model '", model.kind(),
                     "' needs every row of a multi-valued feature; embedding.pooling must be "
                     "'worker', not 'server'"));
  }
  const bool weighted = schema.format == DataFormat::kLibsvm || schema.format == DataFormat::kLibfm;
  if (plan.lookup.server_pooling && weighted) {
    return absl::InvalidArgumentError(
        "libsvm and libfm values weigh their rows, which servers do not do; embedding.pooling must be "
        "'worker'");
  }

  absl::btree_map<std::string, std::vector<int>> shared;
  for (int f = 0; f < num_features; ++f) {
    if (!schema.sparse[f].shared_as.empty()) shared[schema.sparse[f].shared_as].push_back(f);
  }
  for (auto& [name, features] : shared) {
    if (features.size() > 1) plan.lookup.shared_features.push_back(std::move(features));
  }

  if (model.NeedsEmbeddings()) {
    std::vector<const std::string*> owner(num_features, nullptr);
    for (const TableSpec& spec : job.tables) {
      LookupTable table{.name = spec.name, .dim = job.model.dim};
      for (const std::string& column : spec.features) {
        const auto found =
            std::find_if(schema.sparse.begin(), schema.sparse.end(),
                         [&](const SparseFeature& feature) { return feature.column == column; });
        if (found == schema.sparse.end()) {
          const std::string known = absl::StrJoin(
              schema.sparse, ", ", [](std::string* out, const SparseFeature& f) { *out += f.column; });
          return absl::InvalidArgumentError(
              absl::StrCat("table '", spec.name, "' wants feature '", column,
                           "', which the data does not have; there are: ", known));
        }
        const int f = static_cast<int>(found - schema.sparse.begin());
        if (owner[f] != nullptr) {
          return absl::InvalidArgumentError(absl::StrCat("feature '", column, "' is claimed by two tables, '",
                                                         *owner[f], "' and '", spec.name, "'"));
        }
        owner[f] = &spec.name;
        table.features.push_back(f);
      }
      plan.lookup.tables.push_back(std::move(table));
      plan.tables.push_back(MakeTable(job, spec, job.model.dim, num_workers));
      plan.wires.push_back(spec.wire);
      plan.caches.push_back(spec.cache);
      TANDEM_RETURN_IF_ERROR(PlaceFeatures(job, spec, schema, &plan));
    }
    LookupTable rest{.name = job.embedding.name, .dim = job.model.dim};
    for (int f = 0; f < num_features; ++f) {
      if (owner[f] == nullptr) rest.features.push_back(f);
    }
    if (!rest.features.empty()) {
      plan.lookup.tables.push_back(std::move(rest));
      plan.tables.push_back(MakeTable(job, job.embedding, job.model.dim, num_workers));
      plan.wires.push_back(job.embedding.wire);
      plan.caches.push_back(job.embedding.cache);
      TANDEM_RETURN_IF_ERROR(PlaceFeatures(job, job.embedding, schema, &plan));
    }
  }
  if (model.NeedsWide()) {
    LookupTable wide{.name = job.wide.name, .dim = 1, .wide = true};
    for (int f = 0; f < num_features; ++f) wide.features.push_back(f);
    plan.lookup.tables.push_back(std::move(wide));
    plan.tables.push_back(MakeTable(job, job.wide, 1, num_workers));
    plan.wires.push_back(job.wide.wire);
    plan.caches.push_back(job.wide.cache);
    TANDEM_RETURN_IF_ERROR(PlaceFeatures(job, job.wide, schema, &plan));
  }
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    TANDEM_RETURN_IF_ERROR(ps::ValidateTableConfig(plan.tables[t]));
    TANDEM_RETURN_IF_ERROR(ps::ValidateCacheOptions(plan.tables[t], plan.caches[t]));
    plan.lookup.tables[t].counts_occurrences = ps::CountsOccurrences(plan.tables[t]);
  }
  return plan;
}

}  // namespace tandem::worker
