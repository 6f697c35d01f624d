// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_IPC_MEMORY_FILE_H_
#define TANDEM_BASE_IPC_MEMORY_FILE_H_

// Memory that processes share without a name: an anonymous file (memfd). Its size is sealed, so that no
// process can shrink it while another uses it. It is freed when the last process that maps it has ended, in
// whatever way.

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ipc/descriptor.h"

namespace tandem::ipc {

// A shared memory file, mapped for the lifetime of the object. The object is thread-safe; accesses to the
// memory need their own synchronisation.
class MemoryFile {
 public:
  // Creates a memory file. Its pages are zero and are committed when first touched. `name` appears in
  // /proc/PID/maps. FailedPrecondition names the system call that the kernel refused.
  static absl::StatusOr<std::unique_ptr<MemoryFile>> Create(const char* name, size_t bytes);
  // Maps the memory file of another process. FailedPrecondition if `file` is not a sealed memory file of
  // exactly `bytes`.
  static absl::StatusOr<std::unique_ptr<MemoryFile>> Map(Descriptor file, size_t bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }
  // Returns the creator's descriptor, to be passed to another process. -1 after CloseDescriptor, and for a
  // mapped file of another process.
  int descriptor() const { return file_.get(); }
  void CloseDescriptor() { file_ = Descriptor(); }

  // Requests huge pages for [offset, offset + bytes). No effect if the system does not allow them for shared
  // memory.
  void PreferHugePages(size_t offset, size_t bytes);

 private:
  MemoryFile(Descriptor file, char* data, size_t size) : file_(std::move(file)), data_(data), size_(size) {}
  static absl::StatusOr<std::unique_ptr<MemoryFile>> MapFile(Descriptor file, size_t bytes);

  Descriptor file_;
  char* const data_;
  const size_t size_;
};

}  // namespace tandem::ipc

#endif  // TANDEM_BASE_IPC_MEMORY_FILE_H_
