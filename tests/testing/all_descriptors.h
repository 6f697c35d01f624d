// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_ALL_DESCRIPTORS_H_
#define TANDEM_TESTS_TESTING_ALL_DESCRIPTORS_H_

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/ipc/descriptor.h"
#include "gtest/gtest.h"

namespace tandem::testing {

// Returns the number of descriptors that this process has open, and one or two more.
inline int OpenDescriptors() {
  int count = 0;
  DIR* const directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

// Takes all descriptors that this process may have, until it is destroyed. Meanwhile every call that needs
// one fails with EMFILE.
class AllDescriptors {
 public:
  AllDescriptors() {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    // The limit may be a million.
    rlimit few = before_;
    few.rlim_cur = std::min<rlim_t>(few.rlim_cur, static_cast<rlim_t>(OpenDescriptors()) + 64);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    while (true) {
      ipc::Descriptor one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!one.valid()) break;
      taken_.push_back(std::move(one));
    }
    EXPECT_EQ(errno, EMFILE);
  }
  ~AllDescriptors() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  AllDescriptors(const AllDescriptors&) = delete;
  AllDescriptors& operator=(const AllDescriptors&) = delete;

 private:
  rlimit before_ = {};
  std::vector<ipc::Descriptor> taken_;
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_ALL_DESCRIPTORS_H_
