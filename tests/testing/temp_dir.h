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

// A fresh directory of this test alone, removed with all that is in it when the object goes. Its path is
// short enough for unix sockets when TMPDIR is.
class TempDir {
 public:
  TempDir() : path_(::testing::TempDir()) {
    if (path_.empty() || path_.back() != '/') path_ += '/';
    path_ += "tandem_XXXXXX";
    TANDEM_CHECK_MSG(::mkdtemp(path_.data()) != nullptr, path_);
  }
  ~TempDir() {
    std::error_code ignored;  // a leftover scratch directory is no reason to fail
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  // "<path>/<name>"; nothing is created.
  std::string File(absl::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_TEMP_DIR_H_
