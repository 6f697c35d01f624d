// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_FUZZ_REAL_FILES_H_
#define TANDEM_TESTS_FUZZ_REAL_FILES_H_

#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status.h"
#include "gtest/gtest.h"
#include "tests/fuzz/byte_source.h"

namespace tandem::fuzz {

// Returns the bytes as their writer would have sealed them: with right checksums, as far as they have places
// for them.
using Seal = std::function<std::string(std::string bytes)>;

// Files that real writers have made. An input replaces one of them:
//
//   u8    the number of the file; with 0x80 its checksums are made right, so that the readers see what
//         follows them
//   rest  the content of the file
class RealFiles {
 public:
  RealFiles() : directory_(Parent() + "/fuzz_XXXXXX") {
    TANDEM_CHECK_MSG(::mkdtemp(directory_.data()) != nullptr, directory_);
  }
  ~RealFiles() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  RealFiles(const RealFiles&) = delete;
  RealFiles& operator=(const RealFiles&) = delete;

  const std::string& directory() const { return directory_; }
  std::string File(const std::string& name) const { return absl::StrCat(directory_, "/", name); }

  // Takes the file `name` of the directory as it is now.
  void Add(const std::string& name, Seal seal = nullptr) {
    files_.push_back({File(name), ReadFile(File(name)).value(), std::move(seal)});
  }
  std::vector<std::string> Seeds() const {
    std::vector<std::string> seeds;
    for (size_t i = 0; i < files_.size(); ++i) {
      seeds.push_back(absl::StrCat(std::string(1, static_cast<char>(i)), files_[i].content));
      if (files_[i].seal == nullptr) continue;
      seeds.push_back(absl::StrCat(std::string(1, static_cast<char>(i | kSealed)), files_[i].content));
    }
    return seeds;
  }
  // Replaces a file, calls `read` with the number of the file, and puts the file back.
  void Run(Input input, const std::function<void(size_t file)>& read) const {
    ByteSource source(input);
    const auto choice = source.Take<uint8_t>();
    const size_t number = (choice & ~kSealed) % files_.size();
    const RealFile& file = files_[number];
    std::string bytes = ToString(source.Rest());
    if ((choice & kSealed) != 0 && file.seal != nullptr) bytes = file.seal(std::move(bytes));
    Write(file.path, bytes);
    read(number);
    Write(file.path, file.content);
  }
  // Puts all files back, after code that has changed others.
  void Restore() const {
    for (const RealFile& file : files_) Write(file.path, file.content);
  }

 private:
  static constexpr uint8_t kSealed = 0x80;
  // Writers wait for the disk, if there is one.
  static std::string Parent() { return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ::testing::TempDir(); }
  struct RealFile {
    std::string path, content;
    Seal seal;
  };
  static void Write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  std::string directory_;
  std::vector<RealFile> files_;
};

}  // namespace tandem::fuzz

#endif  // TANDEM_TESTS_FUZZ_REAL_FILES_H_
