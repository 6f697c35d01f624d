// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "ps/optimizers/registry.h"
#include "ps/policies/registry.h"
#include "worker/job/job_schema_parts.h"

namespace tandem::worker {
namespace {

void DescribeServerOptimizer(Fields& f, v1::OptimizerConfig& o) {
  DescribeKind(f, ps::Optimizers(), "formula; the servers apply it", o);
  DescribeKindFields(f, ps::Optimizers(), o);
}

void DescribeInitializer(Fields& f, v1::InitializerConfig& i) {
  DescribeKind(f, ps::Initializers(), "initial values of a row", i);
  DescribeKindFields(f, ps::Initializers(), i);
}

void DescribeAdmission(Fields& f, v1::AdmissionConfig& admission) {
  DescribeKind(f, ps::Admissions(), "which ids get a row", admission);
  DescribeKindFields(f, ps::Admissions(), admission);
}

void DescribeEviction(Fields& f, TableSpec& table) {
  v1::EvictionConfig& eviction = table.eviction;
  DescribeKind(f, ps::Evictions(), "which rows leave", eviction);
  DescribeKindFields(f, ps::Evictions(), eviction);
  const std::string kind = eviction.kind();
  if (kind == "none") eviction.clear_kind();
  f.Integer("byte_budget", &table.byte_budget, AtLeast(0),
            "bytes of rows and index of the whole table, over all servers; each bucket has an equal part. "
            "New rows of one step come on top, at most as many again. At least 65536; 0: no budget");
  if (!f.reading()) return;
  if (table.byte_budget != 0 && table.byte_budget < ps::kMinByteBudget) {
    f.Wrong("byte_budget", absl::StrCat("must be 0 or at least ", ps::kMinByteBudget));
  }
  if (eviction.kind().empty() && table.byte_budget != 0) {
    f.Wrong("byte_budget", absl::StrCat("needs a kind that says which rows leave when it is used up: ",
                                        ps::EvictionKindsText(/*for_budget_only=*/false)));
  }
  if (ps::EvictsForBudget(kind) && table.byte_budget == 0) {
    f.Wrong("byte_budget", absl::StrCat("is missing: '", kind, "' evicts rows when it is used up"));
  }
}

v1::ValueFormat DescribeValues(Fields& f, const char* name, v1::ValueFormat format, const char* help) {
  int index = format;  // positions as in v1::ValueFormat
  f.OneOf(name, &index, Names{"f32", "f16", "bf16", "int8"}, help);
  return static_cast<v1::ValueFormat>(index);
}

void DescribeWire(Fields& f, ps::WireOptions& wire) {
  wire.pull_values = DescribeValues(f, "pull", wire.pull_values,
                                    "number format in which rows travel to the workers; `int8`: 8 bits each "
                                    "and a scale per row. The servers' tables are not affected");
  wire.push_values =
      DescribeValues(f, "push", wire.push_values, "number format in which gradients travel to the servers");
  f.Choice("pack_ids", &wire.pack_ids, {"auto", "always", "never"},
           "whether ids travel in as few bits as their distances need. `auto`: where they cross a socket and "
           "it saves 3 of 8 bytes. Ids of features are hashes, which cannot be packed");
  const bool lossy = wire.push_values != v1::VALUES_F32;
  if (f.reading() || lossy) {
    bool feedback = wire.UsesErrorFeedback();
    if (f.Bool("error_feedback", &feedback,
               "whether what a lossy `push` loses of an id's gradient is kept at the worker and added to "
               "that id's next gradient; true by default for `int8`. Not for `pooling: server`, whose "
               "gradients are of examples. A run that resumes from a checkpoint starts with nothing kept"))
      wire.error_feedback = feedback;
    if (f.reading() && !lossy && feedback) {
      f.Wrong("error_feedback", "is for pushes that lose something; 'push' is f32");
    }
  }
  if (f.reading() || wire.UsesErrorFeedback()) {
    f.Integer("error_feedback_bytes", &wire.error_feedback_bytes, AtLeast(1),
              "bytes for that, for each table and worker. When they are used up, what is kept of ids that "
              "were not pushed lately is dropped, and the report says how often");
  }
}

void DescribeCache(Fields& f, ps::CacheOptions& cache) {
  ByteSize(f, "bytes", &cache.bytes,
           "memory for rows that each worker keeps (HET, VLDB 2022); a row takes twice its size and 50 bytes "
           "more. A copy moves with the worker's own gradients, by the step that these were seen to make. "
           "Evaluation reads the servers' rows. Not with `mode: sync` or `pooling: server`; 0: no cache");
  f.Integer("max_uses", &cache.max_uses, Between(1, 65535),
            "pulls that a copy serves before its row is fetched again, fewer while it is new");
  f.Integer("max_age", &cache.max_age, Between(0, 2147483647),
            "a copy that is more updates of the table old than this (every worker's push is one) is fetched "
            "again if its row was updated since");
  f.Integer("push_bound", &cache.push_bound, Between(1, 1 << 20),
            "gradients of a cached row are added up and pushed together every `push_bound`-th time, when the "
            "row leaves the cache and at an epoch's end");
}

}  // namespace

void ByteSize(Fields& f, const char* name, size_t* bytes, const char* help) {
  constexpr std::pair<const char*, int> kUnits[] = {{"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"", 0}};
  std::string text;
  if (!f.parsing()) {
    for (const auto& [unit, shift] : kUnits) {
      if (*bytes % (size_t{1} << shift) != 0 || (*bytes == 0 && shift > 0)) continue;
      text = absl::StrCat(*bytes >> shift, unit);
      break;
    }
  }
  if (!f.Text(name, &text, help)) return;
  for (const auto& [unit, shift] : kUnits) {
    absl::string_view number = text;
    uint64_t value;
    if (!absl::ConsumeSuffix(&number, unit)) continue;
    if (absl::SimpleAtoi(number, &value) && value < uint64_t{1} << (44 - shift)) {
      *bytes = value << shift;
      return;
    }
  }
  f.Wrong(name, absl::StrCat("is '", text,
                             "'; write a whole number of bytes, or one with KiB, MiB or GiB, as 64MiB"));
}

void DescribeTable(Fields& f, TableSpec& table) {
  f.Group("optimizer", "kind", "", [&](Fields& g) { DescribeServerOptimizer(g, table.optimizer); });
  f.Group("initializer", "kind", "", [&](Fields& g) { DescribeInitializer(g, table.initializer); });
  const ps::OptimizerKind* const optimizer = ps::Optimizers().Find(table.optimizer.kind());
  const ConfigField<v1::OptimizerConfig> l2 = ps::L2();
  if (optimizer == nullptr || optimizer->FindField(l2.info.name) == nullptr) {
    DescribeField(f, l2, table.optimizer);
  }
  int row_type = table.row_type;  // positions as in v1::TableConfig::RowType
  f.OneOf("row_type", &row_type, Names{"f32", "f16", "bf16"},
          "number format in which rows are stored; optimizer state and arithmetic are f32");
  table.row_type = static_cast<v1::TableConfig::RowType>(row_type);
  f.Bool("stochastic_rounding", &table.stochastic_rounding,
         "for f16 and bf16 rows: small updates add up on average where rounding to nearest would lose them. "
         "Chances are drawn from (seed, id, update), so runs repeat");
  if (f.reading() && table.stochastic_rounding && table.row_type == v1::TableConfig::F32) {
    f.Wrong("stochastic_rounding", "rounds f16 and bf16 rows; 'row_type' is f32");
  }
  f.Group("admission", "kind", "", [&](Fields& g) { DescribeAdmission(g, table.admission); });
  f.Group("eviction", "kind", "", [&](Fields& g) { DescribeEviction(g, table); });
  f.Group("wire", nullptr, "", [&](Fields& g) { DescribeWire(g, table.wire); });
  f.Group("cache", "bytes", "", [&](Fields& g) { DescribeCache(g, table.cache); });
  f.Choice("placement", &table.placement, {"auto", "sharded", "replicated"},
           "where rows live in asynchronous modes. `sharded`: on the servers. `replicated`: in every worker, "
           "updated together with the dense parameters, so that they are never stale; ids join at the next "
           "choice after they are first seen. `auto`: rows that are updated often within the delay of a push "
           "are replicated, the others sharded ([hybrid_quality.md](hybrid_quality.md)). A table with a "
           "cache, a `clip_global_norm` or `pooling: server` cannot have replicated rows. `mode: sync` has "
           "none");
  f.Texts("replicated_features", &table.replicated_features,
          "sparse columns of the table that are placed `replicated`, whatever `placement` says");
  f.Texts("sharded_features", &table.sharded_features,
          "sparse columns of the table that are placed `sharded`, whatever `placement` says");
  for (const std::string& feature : table.sharded_features) {
    if (f.reading() && absl::c_linear_search(table.replicated_features, feature)) {
      f.Wrong("sharded_features",
              absl::StrCat("names '", feature, "', which 'replicated_features' names, too"));
    }
  }
  f.Choice("l2_scope", &table.l2_scope, {"touched", "all"},
           "replicated rows that `l2` and `weight_decay` change in a step: `touched`: those in some worker's "
           "batch, as on the servers; `all`: every one, as if the table were a dense parameter (the practice "
           "of published CTR baselines)");
  f.Bool("spill", &table.spill,
         "whether rows that eviction takes out of memory go to the servers' disks (RocksDB, `tandem run "
         "--spill-dir`, `tandem ps --spill-dir`) with their optimizer state, and come back when they are "
         "pulled in training or pushed. The table trains as if its memory had no bound, only slower; "
         "checkpoints hold all rows. Needs an eviction that evicts for a `byte_budget`");
  if (f.reading() && table.spill && !ps::EvictsForBudget(table.eviction.kind())) {
    f.Wrong("spill",
            absl::StrCat("needs 'eviction' to say which rows go to disk when its byte_budget is used up: ",
                         ps::EvictionKindsText(/*for_budget_only=*/true)));
  }
}

void DescribeExtraTables(Fields& f, JobSpec& job) {
  f.List<TableSpec>("tables", nullptr, "", &job.tables, [](Fields& g, TableSpec& table) {
    if (!g.Text("name", &table.name, "name of the table; required") && g.reading()) {
      g.Wrong("name", "is missing");
    } else if (const absl::Status named = ps::ValidateTableName(table.name); g.reading() && !named.ok()) {
      g.Wrong("name", absl::StripPrefix(named.message(), "the name "));
    }
    if (!g.Texts("features", &table.features, "sparse columns whose rows live in it; required") &&
        g.reading()) {
      g.Wrong("features", "is missing: it lists the sparse columns whose rows live in the table");
    }
    DescribeTable(g, table);
  });
  if (!f.reading()) return;
  std::set<std::string> names = {"embedding", "wide"}, taken;
  for (const TableSpec& table : job.tables) {
    if (!names.insert(table.name).second) {
      f.Wrong("tables", absl::StrCat("has a second table named '", table.name, "'"));
    }
    for (const std::string& feature : table.features) {
      if (!taken.insert(feature).second) {
        f.Wrong("tables", absl::StrCat("puts the column '", feature, "' into two tables"));
      }
      // Formats that find their columns in the data are checked when the data is opened.
      if (job.data.schema.sparse.empty()) continue;
      Names columns;
      for (const SparseFeature& sparse : job.data.schema.sparse) columns.push_back(sparse.column);
      if (absl::c_linear_search(columns, feature)) continue;
      f.Wrong("tables", absl::StrCat("takes the feature '", feature, "', which 'data.sparse' does not have",
                                     Suggestion(feature, columns)));
    }
  }
}

// Needs the whole job: what a cache goes with is told elsewhere in it.
void CheckCaches(Fields& f, const JobSpec& job) {
  const auto check = [&](const char* field, const TableSpec& table) {
    if (table.cache.bytes == 0) return;
    if (job.train.mode.kind() == v1::UpdateMode::SYNC) {
      f.Wrong(
          field,
          "has a cache, but 'train.mode' is sync, which promises the newest rows: make it async or bounded");
    }
    if (job.pooling == PoolingPlace::kServer) {
      f.Wrong(field,
              "has a cache, which holds rows, but with 'pooling: server' only sums come to the workers");
    }
  };
  check("embedding", job.embedding);
  check("wide", job.wide);
  for (const TableSpec& table : job.tables) check("tables", table);
}

// Likewise for rows that workers replicate.
void CheckPlacements(Fields& f, const JobSpec& job) {
  const auto check = [&](const char* field, const TableSpec& table) {
    if (table.placement != ps::Placement::kReplicated && table.replicated_features.empty()) return;
    if (table.cache.bytes > 0) {
      f.Wrong(field,
              "has a cache and replicated rows; a replicated row needs no cache: leave 'cache' out, or "
              "'placement: replicated' and 'replicated_features'");
    }
    if (table.optimizer.clip_global_norm() > 0) {
      f.Wrong(field,
              "has replicated rows, whose gradients are not part of a push, so 'clip_global_norm' cannot be "
              "computed: use 'clip_row_norm', or 'placement: sharded'");
    }
    if (job.pooling == PoolingPlace::kServer) {
      f.Wrong(field,
              "has replicated rows, but with 'pooling: server' the servers add up all rows of an example: "
              "use 'pooling: worker', or 'placement: sharded'");
    }
  };
  check("embedding", job.embedding);
  check("wide", job.wide);
  for (const TableSpec& table : job.tables) check("tables", table);
}

}  // namespace tandem::worker
