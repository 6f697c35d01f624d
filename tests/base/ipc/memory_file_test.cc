// SPDX-License-Identifier: Apache-2.0
#include "base/ipc/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "tests/testing/status_matchers.h"

namespace tandem::ipc {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

TEST(MemoryFileTest, ASecondMappingSharesTheMemoryAndKeepsNoDescriptor) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto first, MemoryFile::Create("test", 1 << 20));
  const int passed = fcntl(first->descriptor(), F_DUPFD_CLOEXEC, 0);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto second, MemoryFile::Map(Descriptor(passed), 1 << 20));
  EXPECT_EQ(fcntl(passed, F_GETFD), -1);
  EXPECT_EQ(second->descriptor(), -1);
  EXPECT_EQ(second->data()[12345], 0);
  first->data()[12345] = 7;
  EXPECT_EQ(second->data()[12345], 7);
  first.reset();
  EXPECT_EQ(second->data()[12345], 7);
}

TEST(MemoryFileTest, WhatCouldShrinkOrHasAnotherSizeOrIsNoMemoryIsRefused) {
  Descriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  const int number = unsealed.get();
  EXPECT_THAT(MemoryFile::Map(std::move(unsealed), 4096).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not sealed")));
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto sealed, MemoryFile::Create("test", 4096));
  EXPECT_EQ(ftruncate(sealed->descriptor(), 0), -1);
  EXPECT_THAT(MemoryFile::Map(Descriptor(fcntl(sealed->descriptor(), F_DUPFD_CLOEXEC, 0)), 8192).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("8192 bytes")));
  EXPECT_THAT(MemoryFile::Map(Descriptor(open("/dev/null", O_RDWR | O_CLOEXEC)), 4096).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(MemoryFile::Map(Descriptor(), 4096).status(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace tandem::ipc
