// SPDX-License-Identifier: Apache-2.0
// Files that people pass on: job files, data files, and the dumps of flight recorders.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/diagnostics/flight_recorder.h"
#include "collectives/diagnostics/trace_analysis.h"
#include "collectives/diagnostics/trace_file.h"
#include "tests/fuzz/real_files.h"
#include "worker/data/dataset.h"
#include "worker/job/job_parser.h"

namespace tandem::fuzz {
namespace {

using namespace collectives;  // NOLINT

// The dumps of two ranks, of which one waits for the other.
class Dumps {
 public:
  Dumps() {
    for (const int rank : {0, 1}) {
      FlightRecorder recorder({.entries = 8, .directory = files_.directory(), .rank = rank});
      const uint32_t group = recorder.AddGroup("default", "tcp", rank, {0, 1});
      Operation operation;
      operation.kind = OpKind::kAllReduce;
      operation.dtype = DType::kF32;
      operation.in.count = operation.out.count = 1024;
      recorder.End(recorder.BeginStarted(group, operation), absl::OkStatus());
      operation.sequence = 1;
      if (rank == 0) recorder.BeginStarted(group, operation);
      TANDEM_CHECK(recorder.Dump("test").ok());
    }
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(files_.directory()))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) files_.Add(name);
  }
  const RealFiles& files() const { return files_; }

 private:
  RealFiles files_;
};
const Dumps& RealDumps() {
  static const Dumps dumps;
  return dumps;
}

constexpr char kCsv[] =
    "label,price,user,tags\n1,0.5,alice,a|b\n0,-3e4,bob,\n1,,\"quoted, \"\"name\"\"\",c\n0,1,alice,a\n";
constexpr char kCriteo[] =
    "1\t1\t2\t3\t4\t5\t6\t7\t8\t9\t10\t11\t12\t13\ta\tb\tc\td\te\tf\tg\th\ti\tj\tk\tl\tm\tn\to\tp\tq\tr\ts\tt"
    "\tu\tv\tw\tx\ty\tz\n"
    "0\t\t-2\t\t4\t\t6\t\t8\t\t10\t\t12\t\ta\t\tc\t\te\t\tg\t\ti\t\tk\t\tm\t\to\t\tq\t\ts\t\tu\t\tw\t\ty\t\n";
constexpr char kLibsvm[] = "1 qid:7 1:0.5 3:1 99:2e3\n-1 qid:7 2:1 # comment\n0 1:1\n";
constexpr char kLibfm[] = "1 0:1 5:0.25\n0 1:1 7:-1\n";

class DataFiles {
 public:
  DataFiles() {
    for (const auto& [name, text] :
         {std::pair{"a.csv", kCsv}, {"b.criteo", kCriteo}, {"c.libsvm", kLibsvm}, {"d.libfm", kLibfm}}) {
      std::ofstream(files_.File(name)) << text;
      files_.Add(name);
      names_.push_back(name);
    }
  }
  const RealFiles& files() const { return files_; }
  void Run(Input input) const {
    files_.Run(input, [&](size_t file) {
      worker::DatasetOptions options{.train_files = {files_.File(names_[file])}};
      options.schema = SchemaOf(file);
      const auto data = worker::Dataset::Open(options);
      if (!data.ok()) return;
      (void)(*data)->Count(worker::Split::kTrain);
      (void)(*data)->RepeatedShare();
      const auto reader = (*data)->Read({.batch_size = 16, .shuffle = true});
      if (!reader.ok()) return;
      worker::Batch batch;
      while ((*reader)->Next(&batch).value_or(false)) {
      }
    });
  }

 private:
  static worker::Schema SchemaOf(size_t file) {
    using worker::DataFormat;
    worker::Schema schema;
    schema.format =
        std::vector{DataFormat::kCsv, DataFormat::kCriteo, DataFormat::kLibsvm, DataFormat::kLibfm}[file];
    if (schema.format != DataFormat::kCsv) return schema;
    schema.label = "label";
    schema.dense = {{.column = "price", .transform = worker::DenseTransform::kStandardize}};
    schema.sparse = {{.column = "user"}, {.column = "tags", .separator = '|', .hash_buckets = 100}};
    schema.kept = {"user"};
    return schema;
  }
  RealFiles files_;
  std::vector<std::string> names_;
};
const DataFiles& RealData() {
  static const DataFiles data;
  return data;
}

}  // namespace

void FuzzTraceDump(Input input) {
  RealDumps().files().Run(input, [](size_t) {
    const std::string& directory = RealDumps().files().directory();
    const auto read = ReadTraces(directory);
    if (!read.ok()) return;
    const TraceAnalysis analysis = Analyze(*read);
    (void)TraceText(directory, *read, analysis);
    (void)TraceJson(directory, *read, analysis);
  });
}
std::vector<std::string> TraceDumpSeeds() { return RealDumps().files().Seeds(); }

void FuzzData(Input input) { RealData().Run(input); }
std::vector<std::string> DataSeeds() { return RealData().files().Seeds(); }

// An input is a job file.
void FuzzJob(Input input) {
  const auto job = worker::ParseJob(ToString(input), "job.yaml");
  if (job.ok()) (void)worker::JobToYaml(*job);
}
std::vector<std::string> JobSeeds() {
  std::vector<std::string> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(TANDEM_FUZZ_JOBS)) {
    seeds.push_back(ReadFile(entry.path().string()).value());
  }
  std::sort(seeds.begin(), seeds.end());
  return seeds;
}

}  // namespace tandem::fuzz
