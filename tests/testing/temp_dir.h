// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_TEMP_DIR_H_
#define TANDEM_TESTS_TESTING_TEMP_DIR_H_

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "gtest/gtest.h"

namespace tandem::testing {

// A new directory for one test, removed with its contents when the object is destroyed. Its path is short
// enough for unix sockets if TMPDIR is.
class TempDir {
 public:
  TempDir() : path_(::testing::TempDir()) {
    if (path_.empty() || path_.back() != '/') path_ += '/';
    path_ += "tandem_XXXXXX";
    TANDEM_CHECK_MSG(::mkdtemp(path_.data()) != nullptr, path_);
  }
  ~TempDir() {
    std::error_code ignored;  // a leftover scratch directory is not a failure
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  // Returns "<path>/<name>"; nothing is created.
  std::string File(absl::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_TEMP_DIR_H_
