// SPDX-License-Identifier: Apache-2.0
#include "base/ipc/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem::ipc {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status Refused(absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("shared memory cannot be used here: ", what, " failed: ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MemoryFile>> MemoryFile::MapFile(Descriptor file, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) return Refused(absl::StrCat("mmap of ", bytes, " bytes"));
  return std::unique_ptr<MemoryFile>(new MemoryFile(std::move(file), static_cast<char*>(data), bytes));
}

absl::StatusOr<std::unique_ptr<MemoryFile>> MemoryFile::Create(const char* name, size_t bytes) {
  Descriptor file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) return Refused("memfd_create");
  if (ftruncate(file.get(), bytes) != 0 || fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) {
    return Refused("sizing and sealing the memory file");
  }
  return MapFile(std::move(file), bytes);
}

absl::StatusOr<std::unique_ptr<MemoryFile>> MemoryFile::Map(Descriptor file, size_t bytes) {
  struct stat status;
  if (fcntl(file.get(), F_GET_SEALS) != kSeals || fstat(file.get(), &status) != 0 ||
      static_cast<size_t>(status.st_size) != bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("the memory file that was passed is not sealed or not of the expected ", bytes,
                     " bytes: do both sides run the same version?"));
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<MemoryFile> memory, MapFile(std::move(file), bytes));
  memory->CloseDescriptor();
  return memory;
}

MemoryFile::~MemoryFile() { munmap(data_, size_); }

void MemoryFile::PreferHugePages(size_t offset, size_t bytes) {
  // It is no error if huge pages are not available.
  madvise(data_ + offset, bytes, MADV_HUGEPAGE);
}

}  // namespace tandem::ipc
