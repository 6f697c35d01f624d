#ifndef TANDEM_COLLECTIVES_STORE_STORE_H_
#define TANDEM_COLLECTIVES_STORE_STORE_H_

// A key-value store shared by the processes of a job: rendezvous, addresses, barriers. torch.distributed's
// Store.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tandem::collectives {

// Thread-safe. Keys (1 byte to 4 KiB) and values (at most 64 MiB) are byte strings; InvalidArgument outside
// these limits. Errors of a remote store name its address: Unavailable means that it could not be reached.
class Store {
 public:
  virtual ~Store() = default;
  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;
  // Waits until `key` exists; DeadlineExceeded, naming the key, after `timeout`.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) = 0;
  // Adds to a decimal counter (an absent key counts as 0) and returns the sum. InvalidArgument if it holds no
  // number.
  virtual absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) = 0;
  // Sets `desired` if the key holds `expected` ("" also matches an absent key); returns what it holds now.
  virtual absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                                 absl::string_view desired) = 0;
  // Waits until all keys exist; DeadlineExceeded, naming those that do not, after `timeout`.
  virtual absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) = 0;
  // True if the key existed.
  virtual absl::StatusOr<bool> Delete(absl::string_view key) = 0;
  // The keys that begin with `prefix`, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(absl::string_view prefix) = 0;
  // "host:port" of the store's server; empty when the store lives in this process.
  virtual std::string address() const { return ""; }
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_STORE_STORE_H_
