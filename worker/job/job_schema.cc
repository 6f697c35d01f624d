#include "worker/job/job_schema.h"

#include <cctype>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace tandem::worker {
namespace {

using Names = std::vector<std::string>;

int IndexOf(const Names& names, absl::string_view name) {
  const auto found = absl::c_find(names, name);
  return found == names.end() ? 0 : static_cast<int>(found - names.begin());
}

// The field `kind` of a group whose other fields depend on it.
const std::string& ChooseKind(Fields& f, std::string* kind, const Names& kinds) {
  int index = IndexOf(kinds, *kind);
  f.OneOf("kind", &index, kinds);
  *kind = kinds[index];
  f.Note(absl::StrCat("of kind '", *kind, "'"));
  return *kind;
}

// Fields of protobuf messages have setters instead of addresses.
template <typename Set>
void RealField(Fields& f, const char* name, float value, Range range, Set set) {
  f.Real(name, &value, range);
  set(value);
}

// The server's optimizers, with the learning rates a job starts from.
v1::OptimizerConfig ServerOptimizer(absl::string_view kind) {
  if (kind == "sgd") return ps::Sgd(0.05f);
  if (kind == "momentum") return ps::Momentum(0.01f);
  if (kind == "rowwise_adagrad") return ps::RowwiseAdagrad(0.01f);
  if (kind == "adam") return ps::Adam(0.001f);
  if (kind == "adamw") return ps::AdamW(0.001f);
  if (kind == "amsgrad") return ps::AmsGrad(0.001f);
  if (kind == "ftrl") return ps::Ftrl(0.05f);
  return ps::Adagrad(0.01f);
}

void DescribeServerOptimizer(Fields& f, v1::OptimizerConfig& o) {
  const Names kinds = {"sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "adamw", "amsgrad", "ftrl"};
  int index = IndexOf(kinds, o.kind());
  if (f.OneOf("kind", &index, kinds)) o = ServerOptimizer(kinds[index]);
  const std::string& kind = kinds[index];
  f.Note(absl::StrCat("of kind '", kind, "'"));
  RealField(f, "lr", o.learning_rate(), Above(0), [&](float v) { o.set_learning_rate(v); });
  if (kind == "momentum") {
    RealField(f, "momentum", o.momentum(), Fraction(), [&](float v) { o.set_momentum(v); });
  }
  const bool adam = kind == "adam" || kind == "adamw" || kind == "amsgrad";
  if (adam) {
    RealField(f, "beta1", o.beta1(), Fraction(), [&](float v) { o.set_beta1(v); });
    RealField(f, "beta2", o.beta2(), Fraction(), [&](float v) { o.set_beta2(v); });
  }
  if (kind == "adagrad" || kind == "rowwise_adagrad" || adam) {
    RealField(f, "epsilon", o.epsilon(), Above(0), [&](float v) { o.set_epsilon(v); });
  }
  if (kind == "adagrad" || kind == "rowwise_adagrad" || kind == "ftrl") {
    const Range range = kind == "ftrl" ? Above(0) : AtLeast(0);
    RealField(f, "initial_accumulator", o.initial_accumulator(), range,
              [&](float v) { o.set_initial_accumulator(v); });
  }
  if (kind == "ftrl") {
    RealField(f, "l1", o.l1(), AtLeast(0), [&](float v) { o.set_l1(v); });
    RealField(f, "l2", o.l2(), AtLeast(0), [&](float v) { o.set_l2(v); });
    RealField(f, "lr_power", o.learning_rate_power(), Range{.min = -1, .max = 0, .below_max = true},
              [&](float v) { o.set_learning_rate_power(v); });
  } else {
    RealField(f, "weight_decay", o.weight_decay(), AtLeast(0), [&](float v) { o.set_weight_decay(v); });
  }
  RealField(f, "clip_row_norm", o.clip_row_norm(), AtLeast(0), [&](float v) { o.set_clip_row_norm(v); });
  RealField(f, "clip_global_norm", o.clip_global_norm(), AtLeast(0),
            [&](float v) { o.set_clip_global_norm(v); });
  uint32_t warmup = o.warmup_updates();
  f.Integer("warmup_updates", &warmup, AtLeast(0));
  o.set_warmup_updates(warmup);
}

v1::InitializerConfig Initializer(absl::string_view kind) {
  if (kind == "constant") return ps::Constant(0.0f);
  if (kind == "uniform") return ps::Uniform(-0.01f, 0.01f);
  if (kind == "normal") return ps::Normal(0.0f, 0.01f);
  if (kind == "truncated_normal") return ps::TruncatedNormal(0.0f, 0.01f);
  if (kind == "xavier") return ps::Xavier();
  return ps::Zeros();
}

void DescribeInitializer(Fields& f, v1::InitializerConfig& i) {
  const Names kinds = {"zeros", "constant", "uniform", "normal", "truncated_normal", "xavier"};
  int index = IndexOf(kinds, i.kind());
  if (f.OneOf("kind", &index, kinds)) i = Initializer(kinds[index]);
  const std::string& kind = kinds[index];
  f.Note(absl::StrCat("of kind '", kind, "'"));
  if (kind == "constant") {
    RealField(f, "value", i.value(), {}, [&](float v) { i.set_value(v); });
  }
  if (kind == "uniform") {
    RealField(f, "low", i.low(), {}, [&](float v) { i.set_low(v); });
    RealField(f, "high", i.high(), {}, [&](float v) { i.set_high(v); });
    if (!(i.low() < i.high())) f.Wrong("high", absl::StrCat("must be greater than 'low', ", i.low()));
  }
  if (kind == "normal" || kind == "truncated_normal") {
    RealField(f, "mean", i.mean(), {}, [&](float v) { i.set_mean(v); });
    RealField(f, "stddev", i.stddev(), Above(0), [&](float v) { i.set_stddev(v); });
  }
  if (kind == "xavier") {
    RealField(f, "gain", i.gain(), Above(0), [&](float v) { i.set_gain(v); });
  }
}

void DescribeAdmission(Fields& f, v1::AdmissionConfig& admission) {
  std::string kind = admission.kind();
  ChooseKind(f, &kind, {"always", "probability", "count"});
  if (f.reading() && kind != admission.kind()) {
    admission = kind == "probability" ? ps::AdmitWithProbability(0.1f)
                : kind == "count"     ? ps::AdmitAfter(2, uint64_t{1} << 24)
                                      : ps::AdmitAlways();
  }
  if (kind == "probability") {
    RealField(f, "probability", admission.probability(), Range{.min = 0, .max = 1, .above_min = true},
              [&](float v) { admission.set_probability(v); });
  }
  if (kind == "count") {
    uint32_t threshold = admission.threshold();
    f.Integer("threshold", &threshold, Range{.min = 2, .max = 255});
    admission.set_threshold(threshold);
    uint64_t counters = admission.counters();
    f.Integer("counters", &counters, Range{.min = 1, .max = 1099511627776.0});
    admission.set_counters(counters);
  }
}

void DescribeEviction(Fields& f, TableSpec& table) {
  v1::EvictionConfig& eviction = table.eviction;
  std::string kind = eviction.kind().empty() ? "none" : eviction.kind();
  ChooseKind(f, &kind, {"none", "lru", "lfu", "l2_norm", "ttl"});
  if (f.reading() && kind != "none") eviction.set_kind(kind);
  if (kind == "ttl") {
    uint64_t ttl = eviction.ttl();
    if (!f.Integer("ttl", &ttl, Range{.min = 1, .max = 2147483648.0}) && f.reading()) {
      f.Wrong("ttl", "is missing: after how many updates without one of its own a row leaves");
    }
    eviction.set_ttl(ttl);
  }
  if (f.reading() || table.byte_budget != 0) f.Integer("byte_budget", &table.byte_budget, AtLeast(0));
  if (!f.reading()) return;
  if (kind == "none" && table.byte_budget != 0) {
    f.Wrong("byte_budget",
            "needs a kind that says which rows leave when it is used up: lru, lfu, l2_norm or ttl");
  }
  if (kind != "none" && kind != "ttl" && table.byte_budget == 0) {
    f.Wrong("byte_budget", absl::StrCat("is missing: '", kind, "' evicts rows when it is used up"));
  }
}

v1::ValueFormat DescribeValues(Fields& f, const char* name, v1::ValueFormat format) {
  int index = format;  // positions as in v1::ValueFormat
  f.OneOf(name, &index, Names{"f32", "f16", "bf16", "int8"});
  return static_cast<v1::ValueFormat>(index);
}

void DescribeWire(Fields& f, ps::WireOptions& wire) {
  wire.pull_values = DescribeValues(f, "pull", wire.pull_values);
  wire.push_values = DescribeValues(f, "push", wire.push_values);
  f.Choice("pack_ids", &wire.pack_ids, {"auto", "always", "never"});
  const bool lossy = wire.push_values != v1::VALUES_F32;
  if (f.reading() || lossy) {
    bool feedback = wire.UsesErrorFeedback();
    if (f.Bool("error_feedback", &feedback)) wire.error_feedback = feedback;
    if (f.reading() && !lossy && feedback) {
      f.Wrong("error_feedback", "is for pushes that lose something; 'push' is f32");
    }
  }
  if (f.reading() || wire.UsesErrorFeedback()) {
    f.Integer("error_feedback_bytes", &wire.error_feedback_bytes, AtLeast(1));
  }
}

// A number of bytes, with or without a unit.
void ByteSize(Fields& f, const char* name, size_t* bytes) {
  constexpr std::pair<const char*, int> kUnits[] = {{"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"", 0}};
  std::string text;
  if (!f.reading()) {
    for (const auto& [unit, shift] : kUnits) {
      if (*bytes % (size_t{1} << shift) != 0 || (*bytes == 0 && shift > 0)) continue;
      text = absl::StrCat(*bytes >> shift, unit);
      break;
    }
  }
  if (!f.Text(name, &text)) return;
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
  ByteSize(f, "bytes", &cache.bytes);
  f.Integer("max_uses", &cache.max_uses, Range{.min = 1, .max = 65535});
  f.Integer("max_age", &cache.max_age, Range{.min = 0, .max = 2147483647.0});
  f.Integer("push_bound", &cache.push_bound, Range{.min = 1, .max = 1 << 20});
}

void DescribeTable(Fields& f, TableSpec& table) {
  f.Group("optimizer", "kind", [&](Fields& g) { DescribeServerOptimizer(g, table.optimizer); });
  f.Group("initializer", "kind", [&](Fields& g) { DescribeInitializer(g, table.initializer); });
  if (table.optimizer.kind() != "ftrl") {  // which has an l2 of its own
    RealField(f, "l2", table.optimizer.l2(), AtLeast(0), [&](float v) { table.optimizer.set_l2(v); });
  }
  int row_type = table.row_type;  // positions as in v1::TableConfig::RowType
  f.OneOf("row_type", &row_type, Names{"f32", "f16", "bf16"});
  table.row_type = static_cast<v1::TableConfig::RowType>(row_type);
  f.Bool("stochastic_rounding", &table.stochastic_rounding);
  if (f.reading() && table.stochastic_rounding && table.row_type == v1::TableConfig::F32) {
    f.Wrong("stochastic_rounding", "rounds f16 and bf16 rows; 'row_type' is f32");
  }
  f.Group("admission", "kind", [&](Fields& g) { DescribeAdmission(g, table.admission); });
  f.Group("eviction", "kind", [&](Fields& g) { DescribeEviction(g, table); });
  f.Group("wire", nullptr, [&](Fields& g) { DescribeWire(g, table.wire); });
  if (f.reading() || table.cache.bytes > 0) {
    f.Group("cache", "bytes", [&](Fields& g) { DescribeCache(g, table.cache); });
  }
  if (f.reading() || table.spill) f.Bool("spill", &table.spill);
  const std::string& leaving = table.eviction.kind();
  if (f.reading() && table.spill && (leaving.empty() || leaving == "none" || leaving == "ttl")) {
    f.Wrong(
        "spill",
        "needs 'eviction' to say which rows go to disk when its byte_budget is used up: lru, lfu or l2_norm");
  }
}

void DescribeLabel(Fields& f, Schema& schema, bool named_columns) {
  if (named_columns) f.Text("column", &schema.label);
  if (f.reading() || schema.has_threshold) {
    if (f.Real("threshold", &schema.threshold, {})) schema.has_threshold = true;
  }
}

void DescribeColumns(Fields& f, Schema& schema) {
  f.List<SparseFeature>("sparse", "column", &schema.sparse, [](Fields& g, SparseFeature& feature) {
    if (!g.Text("column", &feature.column) && g.reading()) g.Wrong("column", "is missing");
    g.Character("separator", &feature.separator);
    if (g.reading() || feature.hash_buckets > 0) g.Integer("hash_buckets", &feature.hash_buckets, AtLeast(1));
    if (g.reading() || !feature.shared_as.empty()) g.Text("shared_as", &feature.shared_as);
  });
  f.List<DenseFeature>("dense", "column", &schema.dense, [](Fields& g, DenseFeature& feature) {
    if (!g.Text("column", &feature.column) && g.reading()) g.Wrong("column", "is missing");
    if (g.reading() || feature.transform != DenseTransform::kNone) {
      g.Choice("transform", &feature.transform, {"none", "log1p", "standardize"});
    }
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
  f.Choice("format", &schema.format, formats);
  f.Note(absl::StrCat("of format '", formats[static_cast<int>(schema.format)], "'"));
  const bool csv = schema.format == DataFormat::kCsv;
  const bool named_columns = csv || schema.format == DataFormat::kTsv;
  const bool columns = named_columns || schema.format == DataFormat::kCriteo;

  if (!f.Paths("train", &data.train_files) && f.reading())
    f.Wrong("train", "is missing: it names the file or files to learn from");
  f.Paths("valid", &data.valid_files);
  f.Paths("test", &data.test_files);
  f.Group("split", nullptr, [&](Fields& g) {
    g.Real("valid", &data.valid_fraction, Fraction());
    g.Real("test", &data.test_fraction, Fraction());
    g.Integer("seed", &data.split_seed, AtLeast(0));
    if (data.valid_fraction + data.test_fraction >= 1) {
      g.Wrong("test", "leaves nothing to train on: valid + test must be less than 1");
    }
  });
  if (!csv && f.reading()) schema.delimiter = '\t';
  if (csv) f.Character("delimiter", &schema.delimiter);
  if (named_columns) f.Bool("header", &schema.header);
  const bool labelled = f.Group("label", named_columns ? "column" : nullptr,
                                [&](Fields& g) { DescribeLabel(g, schema, named_columns); });
  if (columns) DescribeColumns(f, schema);
  f.Integer("shuffle_buffer", &job.shuffle_buffer, AtLeast(1));
  f.Integer("max_malformed", &data.max_malformed, AtLeast(0));

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
  const Names kinds = ModelKinds();
  int kind = IndexOf(kinds, model.kind);
  if (!f.OneOf("kind", &kind, kinds) && f.reading()) {
    f.Wrong("kind", absl::StrCat("is missing: it is one of ", absl::StrJoin(kinds, ", ")));
  }
  model.kind = kinds[kind];
  f.Integer("dim", &model.dim, Range{.min = 1, .max = 4096});
  f.Wholes("hidden", &model.hidden, Range{.min = 1, .max = 1 << 20});
  f.Wholes("bottom", &model.bottom, Range{.min = 1, .max = 1 << 20});
  f.Integer("cross_layers", &model.cross_layers, Range{.min = 1, .max = 1000});
  f.Real("dropout", &model.dropout, Fraction());
}

void DescribeSchedule(Fields& f, LearningRateOptions& s) {
  const std::string& kind =
      ChooseKind(f, &s.kind, {"constant", "step", "exponential", "cosine", "reduce_on_plateau"});
  const bool periodic = kind == "step" || kind == "exponential";
  f.Integer("warmup_steps", &s.warmup_steps, AtLeast(0));
  if (periodic) f.Integer("every", &s.every, AtLeast(1));
  if (periodic || kind == "reduce_on_plateau") f.Real("factor", &s.factor, OpenFraction());
  if (kind == "reduce_on_plateau") {
    f.Integer("patience", &s.patience, AtLeast(0));
    f.Real("min_delta", &s.min_delta, AtLeast(0));
  }
  if (kind == "cosine") f.Integer("total_steps", &s.total_steps, AtLeast(0));
  if (kind != "constant") f.Real("min_lr", &s.min_lr, AtLeast(0));
}

void DescribeDenseOptimizer(Fields& f, DenseOptimizerOptions& o, LearningRateOptions& schedule) {
  const std::string& kind = ChooseKind(f, &o.kind, {"sgd", "momentum", "adagrad", "adam", "adamw"});
  f.Real("lr", &schedule.base, Above(0));
  f.Real("weight_decay", &o.weight_decay, AtLeast(0));
  if (kind == "momentum") f.Real("momentum", &o.momentum, Fraction());
  if (kind == "adam" || kind == "adamw") {
    f.Real("beta1", &o.beta1, Fraction());
    f.Real("beta2", &o.beta2, Fraction());
  }
  if (kind == "adam" || kind == "adamw" || kind == "adagrad") f.Real("epsilon", &o.epsilon, Above(0));
  if (kind == "adagrad") f.Real("initial_accumulator", &o.initial_accumulator, AtLeast(0));
  f.Group("schedule", "kind", [&](Fields& g) { DescribeSchedule(g, schedule); });
}

void DescribeMode(Fields& f, v1::UpdateMode& mode) {
  const Names kinds = {"sync", "bounded", "async", "gba"};  // positions as in v1::UpdateMode::Kind
  constexpr uint32_t kGbaStaleness = 4;
  int kind = mode.kind();
  const bool plain = kind == v1::UpdateMode::SYNC || kind == v1::UpdateMode::ASYNC;
  bool named = false;
  if (f.reading() || plain) named = f.OneOf("kind", &kind, kinds);
  uint32_t staleness = mode.staleness(), gba_staleness = kGbaStaleness;
  if (mode.kind() == v1::UpdateMode::GBA) gba_staleness = mode.staleness();
  bool bounded = false, gba = false;
  if (f.reading() || mode.kind() == v1::UpdateMode::BOUNDED) {
    bounded = f.Integer("bounded", &staleness, Range{.min = 1, .max = 1 << 20});
  }
  uint32_t global_batch = mode.global_batch();
  bool batched = false;
  if (f.reading() || mode.kind() == v1::UpdateMode::GBA) {
    gba = f.Integer("gba", &gba_staleness, Range{.min = 0, .max = 1 << 20});
    batched = f.Integer("global_batch", &global_batch, Range{.min = 0, .max = 1 << 20});
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
  f.Group("mode", "kind", [&](Fields& g) { DescribeMode(g, train.mode); });
  f.Integer("batch_size", &train.batch_size, Range{.min = 1, .max = 1 << 24});
  f.Integer("epochs", &train.epochs, AtLeast(1));
  f.Integer("seed", &train.seed, AtLeast(0));
  f.Integer("lookahead", &train.lookahead, Range{.min = 1, .max = 1024});
  f.Integer("max_in_flight", &train.max_in_flight, Range{.min = 1, .max = 4096});
  ByteSize(f, "bucket_bytes", &train.bucket_bytes);
  f.Group("early_stopping", "metric", [&](Fields& g) {
    EarlyStoppingSpec& early = train.early_stopping;
    if (g.reading()) early.patience = 2;
    g.Choice("metric", &early.metric, {"auc", "logloss"});
    g.Integer("patience", &early.patience, AtLeast(0));
    g.Real("min_delta", &early.min_delta, AtLeast(0));
  });
  double log_every = absl::ToDoubleSeconds(train.log_every), timeout = absl::ToDoubleSeconds(train.timeout);
  f.Real("log_every_seconds", &log_every, Range{.min = 0, .max = 86400, .above_min = true});
  f.Real("timeout_seconds", &timeout, Range{.min = 1, .max = 86400});
  train.log_every = absl::Seconds(log_every);
  train.timeout = absl::Seconds(timeout);
}

void DescribeExtraTables(Fields& f, JobSpec& job) {
  f.List<TableSpec>("tables", nullptr, &job.tables, [](Fields& g, TableSpec& table) {
    if (!g.Text("name", &table.name) && g.reading()) g.Wrong("name", "is missing");
    if (!g.Texts("features", &table.features) && g.reading()) {
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

bool IsName(absl::string_view name) {
  return !name.empty() && name[0] != '.' && absl::c_all_of(name, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
}

}  // namespace

void DescribeJob(Fields& f, JobSpec& job) {
  f.Text("name", &job.name);
  if (!IsName(job.name)) {
    f.Wrong("name", absl::StrCat("is '", job.name, "'; it may have letters, digits, '_', '-' and '.'"));
  }
  if (!f.Group("data", nullptr, [&](Fields& g) { DescribeData(g, job); }) && f.reading()) {
    f.Wrong("data", "is missing: it says which files to learn from");
  }
  if (!f.Group("model", "kind", [&](Fields& g) { DescribeModel(g, job.model); }) && f.reading()) {
    f.Wrong("model", absl::StrCat("is missing: write 'model: {kind: ...}' with one of ",
                                  absl::StrJoin(ModelKinds(), ", ")));
  }
  f.Group("embedding", nullptr, [&](Fields& g) {
    DescribeTable(g, job.embedding);
    g.Choice("pooling", &job.pooling, {"worker", "server"});
    g.Choice("combiner", &job.combiner, {"sum", "mean"});
  });
  f.Group("wide", nullptr, [&](Fields& g) { DescribeTable(g, job.wide); });
  DescribeExtraTables(f, job);
  f.Group("optimizer", "kind", [&](Fields& g) { DescribeDenseOptimizer(g, job.optimizer, job.schedule); });
  f.Group("train", nullptr, [&](Fields& g) { DescribeTrain(g, job.train); });
  f.Group("checkpoint", nullptr, [&](Fields& g) {
    if (g.reading() || !job.checkpoint.dir.empty()) g.Path("dir", &job.checkpoint.dir);
    g.Integer("every_epochs", &job.checkpoint.every_epochs, AtLeast(0));
    g.Integer("keep", &job.checkpoint.keep, AtLeast(1));
    double timeout = absl::ToDoubleSeconds(job.checkpoint.timeout);
    g.Real("timeout_seconds", &timeout, Range{.min = 1, .max = 86400});
    job.checkpoint.timeout = absl::Seconds(timeout);
  });
  if (!f.reading()) return;
  CheckCaches(f, job);
  job.model.seed = job.train.seed;
  if (job.checkpoint.dir.empty()) job.checkpoint.dir = absl::StrCat("runs/", job.name);
  const bool needs_valid = job.train.early_stopping.patience > 0 || job.schedule.kind == "reduce_on_plateau";
  if (needs_valid && job.data.valid_files.empty() && job.data.valid_fraction <= 0) {
    f.Wrong("data",
            "has no validation split, which early stopping and reduce_on_plateau look at: "
            "give 'valid' or 'split: {valid: 0.1}'");
  }
}

}  // namespace tandem::worker
