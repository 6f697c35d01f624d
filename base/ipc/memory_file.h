#ifndef TANDEM_BASE_IPC_MEMORY_FILE_H_
#define TANDEM_BASE_IPC_MEMORY_FILE_H_

// Memory that processes share without a name: an anonymous file (memfd), sealed to its size so that nobody
// can shrink it under another's feet. It is gone with the last process that has it, however that ends.

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ipc/descriptor.h"

namespace tandem::ipc {

// Maps the memory as long as it lives. Thread-safe as far as what lies in it is.
class MemoryFile {
 public:
  // Fresh pages are zero, and committed when first touched. `name` shows in /proc/PID/maps.
  // FailedPrecondition naming the system call that the kernel refused.
  static absl::StatusOr<std::unique_ptr<MemoryFile>> Create(const char* name, size_t bytes);
  // Maps another process's. FailedPrecondition if `file` is not a sealed memory file of exactly `bytes`.
  static absl::StatusOr<std::unique_ptr<MemoryFile>> Map(Descriptor file, size_t bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }
  // The creator's descriptor, for passing on; -1 after CloseDescriptor and in other processes.
  int descriptor() const { return file_.get(); }
  void CloseDescriptor() { file_ = Descriptor(); }

  // Asks for huge pages in [offset, offset + bytes), where the system allows them for shared memory.
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
