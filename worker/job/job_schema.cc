// SPDX-License-Identifier: Apache-2.0
#include "worker/job/job_schema.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "worker/job/job_schema_parts.h"
#include "worker/models/registry.h"
#include "worker/nn/registry.h"

namespace tandem::worker {
namespace {

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
    g.Integer(
        "first_steps", &hot.first_steps, Between(1, 1 << 30),
        "steps until the first choice of rows, which are synchronous in every mode; each later interval is "
        "twice as long");
    g.Integer("every_steps", &hot.every_steps, Between(1, 1 << 30), "the longest interval, in steps");
    g.Integer(
        "write_back_steps", &hot.write_back_steps, Between(0, 1 << 30),
        "steps after which the servers get the values of the replicated rows, for programs that read them "
        "meanwhile; 0: only with checkpoints");
  });
  double log_every = absl::ToDoubleSeconds(train.log_every), timeout = absl::ToDoubleSeconds(train.timeout);
  f.Real("log_every_seconds", &log_every, Range{.min = 0, .max = 86400, .above_min = true},
         "time between progress lines");
  f.Real("timeout_seconds", &timeout, Between(1, 86400), "limit of every wait for another process");
  train.log_every = absl::Seconds(log_every);
  train.timeout = absl::Seconds(timeout);
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
  if (!IsJobName(job.name)) {
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
    g.Integer(
        "deltas", &job.checkpoint.deltas, Between(0, 500),
        "checkpoints that in a row hold only the rows changed since the one before, until a complete one "
        "is saved, which also happens once they have half its size. 0: all are complete");
    g.Bool(
        "async_save", &job.checkpoint.async_save,
        "checkpoints within an epoch are written while training goes on; workers wait only until the servers "
        "have fixed their contents. One that is due while the one before is still being written is left out");
  });
  f.Group("ps", nullptr, "", [&](Fields& g) {
    g.Choice(
        "durability", &job.ps.durability, {"off", "log", "follower"},
        "what the job requires of its parameter servers. `log`: they log pushes before they acknowledge "
        "them (`tandem run --wal-dir`), so that a server which dies comes back and the job goes on. "
        "`follower`: each has followers (`tandem run --ps-followers`), one of which takes over. The job is "
        "refused if the servers are not so, or if `train.timeout_seconds` is shorter than a restart or a "
        "takeover");
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
