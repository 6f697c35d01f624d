// SPDX-License-Identifier: Apache-2.0
// The tables of docs/jobs.md are generated from the declarations of the job file's fields. This test compares
// them;
//
//   TANDEM_REGENERATE_DOCS=1 ctest -R worker_job_test
//
// writes them.

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/worker/job/document_tables.h"
#include "worker/job/job_schema.h"

namespace tandem::worker {
namespace {

// Each generated table by the name that its marker gives.
std::map<std::string, std::string> GeneratedTables() {
  JobFields fields;
  FieldLister lister(&fields, "");
  JobSpec job;
  DescribeJob(lister, job);
  return {{"job", FieldTable(fields, "", {"extend", "name"})},
          {"data", FieldTable(fields, "data")},
          {"model", FieldTable(fields, "model")},
          {"model kinds", KindTables(fields, "model")},
          {"table", FieldTable(fields, "embedding")},
          {"tables", FieldTable(fields, "tables.N", {"name", "features"})},
          {"table optimizers", KindTables(fields, "embedding.optimizer")},
          {"initializers", KindTables(fields, "embedding.initializer")},
          {"admissions", KindTables(fields, "embedding.admission")},
          {"evictions", KindTables(fields, "embedding.eviction")},
          {"optimizer", FieldTable(fields, "optimizer")},
          {"dense optimizers", KindTables(fields, "optimizer")},
          {"schedules", KindTables(fields, "optimizer.schedule")},
          {"train", FieldTable(fields, "train")},
          {"checkpoint", FieldTable(fields, "checkpoint")},
          {"ps", FieldTable(fields, "ps")}};
}

TEST(JobReferenceTest, TheTablesOfTheDocumentAreThoseOfTheSchema) {
  CompareWithDocument(absl::StrCat(TANDEM_JOBS_DIR, "/../docs/jobs.md"), "docs/jobs.md", GeneratedTables());
}

}  // namespace
}  // namespace tandem::worker
