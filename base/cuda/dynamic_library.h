// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CUDA_DYNAMIC_LIBRARY_H_
#define TANDEM_BASE_CUDA_DYNAMIC_LIBRARY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::cuda {

// A library that dlopen has loaded. It is never unloaded, because its threads may still run.
class DynamicLibrary {
 public:
  // Loads the first library of `names` that can be loaded. FailedPrecondition: "libnccl.so.2 not found
  // (...)", or the reasons why those that exist cannot be loaded.
  static absl::StatusOr<DynamicLibrary> Open(const std::vector<std::string>& names);

  // Looks up a function. If the library lacks it, sets *function to nullptr, and status() is an error.
  template <typename Function>
  void Find(const char* symbol, Function* function) {
    FindOptional(symbol, function);
    if (*function == nullptr && missing_.empty()) missing_ = symbol;
  }
  // Looks up a function, and sets *function to nullptr if the library lacks it.
  template <typename Function>
  void FindOptional(const char* symbol, Function* function) {
    *function = reinterpret_cast<Function>(Address(symbol));
  }
  // Returns FailedPrecondition if a function that Find looked up is missing; names the first one.
  absl::Status status() const;
  // Returns the file of the library that has `symbol`.
  std::string path(const char* symbol) const;

 private:
  DynamicLibrary(std::string name, void* handle) : name_(std::move(name)), handle_(handle) {}
  void* Address(const char* symbol) const;

  std::string name_;
  void* handle_;  // never closed
  std::string missing_;
};

}  // namespace tandem::cuda

#endif  // TANDEM_BASE_CUDA_DYNAMIC_LIBRARY_H_
