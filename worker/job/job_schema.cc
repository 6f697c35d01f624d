// SPDX-License-Identifier: Apache-2.0
#include "worker/job/job_schema.h"

#include <cctype>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/config_field.h"
#include "base/kind_registry.h"
#include "ps/optimizers/registry.h"
#include "ps/policies/registry.h"
#include "worker/models/registry.h"
#include "worker/nn/registry.h"

namespace tandem::worker {
namespace {

using Names = std::vector<std::string>;

int IndexOf(const Names& names, absl::string_view name) {
  const auto found = absl::c_find(names, name);
  return found == names.end() ? 0 : static_cast<int>(found - names.begin());
}

// Declares a field that its description defines.
template <typename Config>
bool DescribeField(Fields& f, const ConfigField<Config>& field, Config& config) {
  const char* const name = field.info.name.data();
  const char* const help = field.info.help.data();
  const Range& range = field.info.range;
  FieldValue value = field.get(config);
  const bool given = std::visit(
      [&](auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::vector<int>>) {
          return f.Wholes(name, &v, range, help);
        } else if constexpr (std::is_same_v<T, std::string>) {
          const Names choices(field.info.choices.begin(), field.info.choices.end());
          int index = IndexOf(choices, v);
          const bool chosen = f.OneOf(name, &index, choices, help);
          v = choices[index];
          return chosen;
        } else if constexpr (std::is_floating_point_v<T>) {
          return f.Real(name, &v, range, help);
        } else {
          return f.Integer(name, &v, range, help);
        }
      },
      value);
  field.set(config, value);
  if (!given && f.reading() && !field.info.missing.empty()) {
    f.Wrong(name, absl::StrCat("is missing: ", field.info.missing));
  }
  return given;
}

// Returns the name of a configuration's kind; messages have a function and structs a member.
template <typename Config>
absl::string_view KindOf(const Config& config) {
  if constexpr (requires { config.kind(); }) {
    return config.kind();
  } else {
    return config.kind;
  }
}

// Declares the field `kind` of a group whose other fields depend on it. An empty kind stands for the first
// one. Returns whether the file gives it.
template <typename Registry>
bool DescribeKind(Fields& f, const Registry& registry, const char* help, typename Registry::Config& config) {
  const Names names(registry.names().begin(), registry.names().end());
  for (const auto& kind : registry.kinds()) {
    const typename Registry::Config defaults = registry.Default(kind.name);
    KindDoc doc{.name = kind.name, .summary = kind.summary, .reference = kind.reference};
    for (const auto& field : kind.fields) doc.fields.push_back({field.info, field.get(defaults)});
    f.Kind(doc);
  }
  int index = IndexOf(names, KindOf(config));
  const bool given = f.OneOf("kind", &index, names, help);
  if (given) registry.Choose(names[index], &config);
  return given;
}

// Declares the fields of the kind that `config` has.
template <typename Registry>
void DescribeKindFields(Fields& f, const Registry& registry, typename Registry::Config& config) {
  const auto* kind = registry.Find(KindOf(config));
  if (kind == nullptr) kind = &registry.kinds()[0];
  f.Note(absl::StrCat("of kind '", kind->name, "'"));
  for (const auto& field : kind->fields) DescribeField(f, field, config);
  if (!f.reading() || kind->check == nullptr) return;
  if (const std::optional<FieldConflict> conflict = kind->check(config)) {
    f.Wrong(conflict->field.data(), conflict->job_message);
  }
}

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

// A number of bytes, with or without a unit.
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

void DescribeLabel(Fields& f, Schema& schema, bool named_columns) {
  if (named_columns) f.Text("column", &schema.label, "column to predict; csv, tsv: required");
  if (f.reading() || schema.has_threshold) {
    if (f.Real("threshold", &schema.threshold, {},
               "the label is 1 when the value is at least this; without a threshold the value must be 0 or 1 "
               "(or -1)"))
      schema.has_threshold = true;
  }
}

void DescribeColumns(Fields& f, Schema& schema) {
  f.List<SparseFeature>(
      "sparse", "column", "categorical columns; criteo: C1..C26 unless given", &schema.sparse,
      [](Fields& g, SparseFeature& feature) {
        if (!g.Text("column", &feature.column, "name of the column") && g.reading())
          g.Wrong("column", "is missing");
        g.Character("separator", &feature.separator, "splits the values of a multi-valued field");
        if (g.reading() || feature.hash_buckets > 0) {
          g.Integer("hash_buckets", &feature.hash_buckets, AtLeast(1),
                    "number of ids that the values share; by default all 64 bits of the hash count");
        }
        if (g.reading() || !feature.shared_as.empty()) {
          g.Text("shared_as", &feature.shared_as, "features with the same text here share rows");
        }
      });
  f.List<DenseFeature>("dense", "column",
                       "numeric columns; an empty field is 0; criteo: I1..I13 with `log1p` unless given",
                       &schema.dense, [](Fields& g, DenseFeature& feature) {
                         if (!g.Text("column", &feature.column, "name of the column") && g.reading())
                           g.Wrong("column", "is missing");
                         g.Choice("transform", &feature.transform, {"none", "log1p", "standardize"},
                                  "what is done to the values");
                       });
}

template <typename Feature>
void CheckDistinct(Fields& f, const char* field, const std::vector<Feature>& features) {
  std::set<std::string> seen;
  for (const Feature& feature : features) {
    if (!seen.insert(feature.column).second) {
      f.Wrong(field, absl::StrCat("names the column '", feature.column, "' twice"));
    }
  }
}

void DescribeData(Fields& f, JobSpec& job) {
  DatasetOptions& data = job.data;
  Schema& schema = data.schema;
  const Names formats = {"csv", "tsv", "criteo", "libsvm", "libfm"};
  f.Choice("format", &schema.format, formats, "format of the files");
  f.Note(absl::StrCat("of format '", formats[static_cast<int>(schema.format)], "'"));
  const bool csv = schema.format == DataFormat::kCsv;
  const bool named_columns = csv || schema.format == DataFormat::kTsv;
  const bool columns = named_columns || schema.format == DataFormat::kCriteo;

  if (!f.Paths("train", &data.train_files, "a file, a pattern such as `day_*.csv`, or a list of these; `.gz` files are unpacked; required") && f.reading())
    f.Wrong("train", "is missing: it names the file or files to learn from");
  f.Paths("valid", &data.valid_files, "the same; cut from `train` unless given");
  f.Paths("test", &data.test_files, "the same; cut from `train` unless given");
  f.Group("split", nullptr, "", [&](Fields& g) {
    g.Real("valid", &data.valid_fraction, Fraction(),
           "fraction of `train` to validate on, if `valid` is not given");
    g.Real("test", &data.test_fraction, Fraction(), "fraction of `train` to test on, if `test` is not given");
    g.Integer("seed", &data.split_seed, AtLeast(0), "of the hash that decides an example's split");
    g.Choice("by", &data.split_by, {"text", "position"},
             "what is hashed with the seed. `text`: the text of the example's line, so that the order of lines "
             "does not matter and lines of the same text are never divided. `position`: the number of the "
             "example among those of all files, for data with many lines of the same text");
    if (data.valid_fraction + data.test_fraction >= 1) {
      g.Wrong("test", "leaves nothing to train on: valid + test must be less than 1");
    }
  });
  if (!csv && f.reading()) schema.delimiter = '\t';
  if (csv) f.Character("delimiter", &schema.delimiter, "csv: separates the columns");
  if (named_columns)
    f.Bool("header", &schema.header,
           "csv, tsv: whether the first line names the columns; else they are `0`, `1`, ...");
  const bool labelled = f.Group("label", named_columns ? "column" : nullptr, "",
                                [&](Fields& g) { DescribeLabel(g, schema, named_columns); });
  if (columns) DescribeColumns(f, schema);
  if (columns) {
    int nan = schema.nan_is_missing ? 1 : 0;
    f.OneOf("nan", &nan, Names{"malformed", "missing"},
            "what `nan` or `NaN` in a dense column is: `malformed`, as any text that is no number, or "
            "`missing`, as an empty field (as `NA`, `null`, `NULL`, `None`, `\\N` and `?` always are)");
    schema.nan_is_missing = nan == 1;
  }
  f.Bool(
      "shuffle", &job.shuffle,
      "whether each epoch reads the training examples in a new random order; else in the order of the files");
  f.Integer("shuffle_buffer", &job.shuffle_buffer, AtLeast(1),
            "examples; a buffer as large as the split shuffles it uniformly");
  f.Integer("max_malformed", &data.max_malformed, AtLeast(0),
            "malformed lines (wrong number of fields, no number where one must be) that are skipped and "
            "reported; more are fatal");

  if (!f.reading()) return;
  if (named_columns && schema.label.empty()) {
    f.Wrong("label", labelled ? "names no column" : "is missing: it names the column to predict");
  }
  if (named_columns && schema.sparse.empty() && schema.dense.empty()) {
    f.Wrong("sparse", "is missing: 'sparse' and 'dense' list the columns to learn from, at least one in all");
  }
  CheckDistinct(f, "sparse", schema.sparse);
  CheckDistinct(f, "dense", schema.dense);
}

void DescribeModel(Fields& f, ModelOptions& model) {
  if (!DescribeKind(f, Models(), "which model; required", model) && f.reading()) {
    f.Wrong("kind", absl::StrCat("is missing: it is one of ", absl::StrJoin(ModelKinds(), ", ")));
  }
  for (const auto& field : Models().AllFields()) DescribeField(f, field, model);
}

void DescribeDenseOptimizer(Fields& f, DenseOptimizerOptions& o, LearningRateOptions& schedule) {
  DescribeKind(f, DenseOptimizers(), "formula; every worker applies it to the same gradient", o);
  f.Note(absl::StrCat("of kind '", o.kind, "'"));
  DescribeField(f, BaseRateField(), schedule);
  DescribeKindFields(f, DenseOptimizers(), o);
  f.Group("schedule", "kind", "", [&](Fields& g) {
    DescribeKind(g, Schedules(),
                 "how the learning rates of dense parameters and, by the same factor, of tables change",
                 schedule);
    DescribeKindFields(g, Schedules(), schedule);
  });
}

void DescribeMode(Fields& f, v1::UpdateMode& mode) {
  const Names kinds = {"sync", "bounded", "async", "gba"};  // positions as in v1::UpdateMode::Kind
  constexpr uint32_t kGbaStaleness = 4;
  int kind = mode.kind();
  const bool plain = kind == v1::UpdateMode::SYNC || kind == v1::UpdateMode::ASYNC;
  bool named = false;
  if (f.reading() || plain)
    named = f.OneOf("kind", &kind, kinds,
                    "`sync`: one update a step, bit-identical on any number of servers. `bounded`: pulls "
                    "wait for workers that are too far behind. `async`: pulls never wait. `gba`: pulls never "
                    "wait, `global_batch` pushes are one update, and stale pushes are left out, so that a "
                    "job tuned for `sync` goes on as it is. `tandem table set-mode` changes it while the job "
                    "runs; [parameter_server.md](parameter_server.md) compares them");
  uint32_t staleness = mode.staleness(), gba_staleness = kGbaStaleness;
  if (mode.kind() == v1::UpdateMode::GBA) gba_staleness = mode.staleness();
  bool bounded = false, gba = false;
  if (f.reading() || mode.kind() == v1::UpdateMode::BOUNDED) {
    bounded = f.Integer("bounded", &staleness, AtLeast(1),
                        "`{bounded: k}`: a worker is at most k steps ahead of the slowest");
  }
  uint32_t global_batch = mode.global_batch();
  bool batched = false;
  if (f.reading() || mode.kind() == v1::UpdateMode::GBA) {
    gba = f.Integer("gba", &gba_staleness, AtLeast(0),
                    "`{gba: k}`: a push whose rows were pulled more than k updates ago is left out");
    batched = f.Integer("global_batch", &global_batch, Between(0, ps::kMaxGlobalBatch),
                        "`gba`: pushes of an update; 0: one for each worker");
  }
  if (!f.reading()) return;
  if (batched && !gba && kind != v1::UpdateMode::GBA) f.Wrong("global_batch", "is for 'gba' only");
  if (bounded) {
    if (gba || (named && kind != v1::UpdateMode::BOUNDED)) f.Wrong("bounded", "contradicts the other kind");
    mode = ps::Bounded(staleness);
  } else if (gba || kind == v1::UpdateMode::GBA) {
    if (named && kind != v1::UpdateMode::GBA) f.Wrong("gba", "contradicts 'kind'");
    mode = ps::Gba(gba_staleness, global_batch);
  } else if (kind == v1::UpdateMode::BOUNDED) {
    f.Wrong("bounded", "is missing: write {bounded: 4} for a staleness of at most 4");
  } else {
    mode = kind == v1::UpdateMode::SYNC ? ps::Sync() : ps::Async();
  }
}

void DescribeTrain(Fields& f, TrainSpec& train) {
  f.Group("mode", "kind", "", [&](Fields& g) { DescribeMode(g, train.mode); });
  bool per_worker = false, global = false;
  if (f.reading() || train.global_batch_size == 0) {
    per_worker =
        f.Integer("batch_size", &train.batch_size, Between(1, 1 << 24), "examples per worker and step");
  }
  if (f.reading() || train.global_batch_size > 0) {
    global =
        f.Integer("global_batch_size", &train.global_batch_size, Between(1, 1 << 30),
                  "instead of `batch_size`: examples of all workers together per step, a multiple of the "
                  "number of workers, so that a job trains alike on any number of them");
  }
  if (per_worker && global) f.Wrong("global_batch_size", "contradicts 'batch_size': give one of them");
  f.Integer("epochs", &train.epochs, AtLeast(1), "passes over the training data");
  f.Integer("seed", &train.seed, AtLeast(0), "of model, tables and shuffling");
  f.Integer("lookahead", &train.lookahead, Between(1, 1024), "batches whose rows are pulled ahead");
  f.Integer("max_in_flight", &train.max_in_flight, Between(1, 4096),
            "staleness budget: batches pulled whose gradients are not yet acknowledged");
  ByteSize(f, "bucket_bytes", &train.bucket_bytes,
           "the dense network's gradients are all-reduced in buckets of at least so many bytes (`64KiB`), "
           "last layers first, while those of earlier layers are computed. Bits do not depend on it where "
           "workers reduce over shared memory");
  f.Group("early_stopping", "metric", "", [&](Fields& g) {
    EarlyStoppingSpec& early = train.early_stopping;
    if (g.parsing()) early.patience = 2;
    g.Choice("metric", &early.metric, {"auc", "logloss"},
             "validation metric; it also says which epoch is the best");
    g.Integer("patience", &early.patience, AtLeast(0),
              "training stops after so many epochs in a row without an improvement, as in Keras and FuxiCTR: "
              "with 1 after the first. 0: never (2 if the group is given without it)");
    g.Real("min_delta", &early.min_delta, AtLeast(0), "a smaller improvement does not count as one");
  });
  f.Group("hot_rows", "budget", "", [&](Fields& g) {
    HotRowsSpec& hot = train.hot_rows;
    ByteSize(g, "budget", &hot.budget,
             "memory of each worker for rows that all workers replicate, with optimizer state and gradients, "
             "over all tables (`64MiB`); what does not fit stays on the servers");
    g.Real("min_row_staleness", &hot.min_row_staleness, AtLeast(0),
           "`placement: auto` replicates rows that are updated more often than this between the pull and the "
           "push of a gradient, and returns them when it falls below half of it");
    g.Integer("first_steps", &hot.first_steps, Between(1, 1 << 30),
              "steps until the first choice of rows; each later interval is twice as long");
    g.Integer("every_steps", &hot.every_steps, Between(1, 1 << 30), "the longest interval, in steps");
  });
  double log_every = absl::ToDoubleSeconds(train.log_every), timeout = absl::ToDoubleSeconds(train.timeout);
  f.Real("log_every_seconds", &log_every, Range{.min = 0, .max = 86400, .above_min = true},
         "time between progress lines");
  f.Real("timeout_seconds", &timeout, Between(1, 86400), "limit of every wait for another process");
  train.log_every = absl::Seconds(log_every);
  train.timeout = absl::Seconds(timeout);
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

bool IsName(absl::string_view name) {
  return !name.empty() && name[0] != '.' && absl::c_all_of(name, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
}

}  // namespace

void DescribeJob(Fields& f, JobSpec& job) {
  if (f.reading()) {
    // The parser has merged that file already; what is left of it comes from an override.
    std::string extended;
    if (f.Text(
            "extend", &extended,
            "another job file, of which this one gives only what differs: mappings are merged, other values "
            "replaced")) {
      f.Wrong("extend", "can only be given in a job file");
    }
  }
  f.Text("name", &job.name, "name of the job: letters, digits, `_`, `-` and `.`");
  if (!IsName(job.name)) {
    f.Wrong("name", absl::StrCat("is '", job.name, "'; it may have letters, digits, '_', '-' and '.'"));
  }
  if (!f.Group("data", nullptr, "", [&](Fields& g) { DescribeData(g, job); }) && f.reading()) {
    f.Wrong("data", "is missing: it says which files to learn from");
  }
  if (!f.Group("model", "kind", "", [&](Fields& g) { DescribeModel(g, job.model); }) && f.reading()) {
    f.Wrong("model", absl::StrCat("is missing: write 'model: {kind: ...}' with one of ",
                                  absl::StrJoin(ModelKinds(), ", ")));
  }
  f.Group("embedding", nullptr, "", [&](Fields& g) {
    DescribeTable(g, job.embedding);
    g.Choice("pooling", &job.pooling, {"worker", "server"},
             "`embedding` only: where multi-valued features are added up. `worker`: distinct rows travel; "
             "`server`: one row an example travels");
    g.Choice("combiner", &job.combiner, {"sum", "mean"},
             "`embedding` only: what the rows of a multi-valued feature become");
  });
  f.Group("wide", nullptr, "", [&](Fields& g) { DescribeTable(g, job.wide); });
  DescribeExtraTables(f, job);
  f.Group("optimizer", "kind", "",
          [&](Fields& g) { DescribeDenseOptimizer(g, job.optimizer, job.schedule); });
  f.Group("train", nullptr, "", [&](Fields& g) { DescribeTrain(g, job.train); });
  f.Group("checkpoint", nullptr, "", [&](Fields& g) {
    if (g.reading() || !job.checkpoint.dir.empty()) {
      g.Path("dir", &job.checkpoint.dir, "directory of the checkpoints; `runs/NAME` unless given");
    }
    g.Integer("every_epochs", &job.checkpoint.every_epochs, AtLeast(0),
              "epochs between checkpoints. The best epoch is always saved; 0: it alone is, and kept");
    g.Integer("every_steps", &job.checkpoint.every_steps, AtLeast(0),
              "steps between checkpoints, also in the midst of an epoch; 0: none");
    double minutes = absl::ToDoubleMinutes(job.checkpoint.every_time);
    g.Real("every_minutes", &minutes, Between(0, 525600), "minutes between checkpoints; 0: none");
    job.checkpoint.every_time = absl::Minutes(minutes);
    g.Integer("keep", &job.checkpoint.keep, AtLeast(1),
              "the newest checkpoints are kept, and the best one, which the final test uses");
    double timeout = absl::ToDoubleSeconds(job.checkpoint.timeout);
    g.Real("timeout_seconds", &timeout, Between(1, 86400),
           "limit of saving one and of loading one, while the other workers wait");
    job.checkpoint.timeout = absl::Seconds(timeout);
    g.Choice("on_failure", &job.checkpoint.on_failure, {"continue", "stop"},
             "when a checkpoint cannot be saved: log an error and train on (the exit code tells if the last "
             "one failed), or end");
  });
  if (!f.reading()) return;
  CheckCaches(f, job);
  CheckPlacements(f, job);
  job.model.seed = job.train.seed;
  if (job.checkpoint.dir.empty()) job.checkpoint.dir = absl::StrCat("runs/", job.name);
  const bool needs_valid = job.train.early_stopping.patience > 0 || job.schedule.kind == "reduce_on_plateau";
  if (needs_valid && job.data.valid_files.empty() && job.data.valid_fraction <= 0) {
    f.Wrong("data",
            "has no validation split, which early stopping and reduce_on_plateau look at: give 'valid' or "
            "'split: {valid: 0.1}'");
  }
}

}  // namespace tandem::worker
