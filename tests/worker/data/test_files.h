// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_WORKER_DATA_TEST_FILES_H_
#define TANDEM_TESTS_WORKER_DATA_TEST_FILES_H_

// Writes small data files, and reads all batches of a reader into plain vectors.

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/data/dataset.h"

namespace tandem::worker {

inline std::string WriteFile(const testing::TempDir& dir, const std::string& name, const std::string& text) {
  const std::string path = dir.File(name);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// A CSV file with the columns label, n (the row's number, also a dense feature) and c; row i is "i%2,i,v<i>".
inline std::string NumberedCsv(int rows, int first = 0) {
  std::string text = "label,n,c\n";
  for (int i = first; i < first + rows; ++i) absl::StrAppend(&text, i % 2, ",", i, ",v", i, "\n");
  return text;
}

inline Schema NumberedSchema() {
  Schema schema;
  schema.label = "label";
  schema.dense = {{.column = "n"}};
  schema.sparse = {{.column = "c"}};
  return schema;
}

// The examples that one worker read: the first dense feature of each, by batch.
struct Seen {
  std::vector<std::vector<int>> batches;
  uint64_t malformed = 0;
  absl::Status status;

  std::vector<int> All() const {
    std::vector<int> all;
    for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
    return all;
  }
};

inline Seen Drain(BatchReader* reader) {
  Seen seen;
  Batch batch;
  while (true) {
    const absl::StatusOr<bool> more = reader->Next(&batch);
    seen.status = more.status();
    if (!more.ok() || !*more) break;
    EXPECT_EQ(batch.labels.size(), batch.size);
    EXPECT_EQ(batch.dense.size(), batch.size * batch.num_dense);
    std::vector<int>& numbers = seen.batches.emplace_back();
    for (size_t b = 0; b < batch.size; ++b)
      numbers.push_back(static_cast<int>(batch.dense[b * batch.num_dense]));
  }
  seen.malformed = reader->malformed_lines();
  return seen;
}

inline Seen ReadAll(Dataset* dataset, const ReadOptions& options) {
  auto reader = dataset->Read(options);
  if (!reader.ok()) return {.status = reader.status()};
  return Drain(reader->get());
}

}  // namespace tandem::worker

#endif  // TANDEM_TESTS_WORKER_DATA_TEST_FILES_H_
