// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_STORE_H_
#define TANDEM_CLUSTER_STORE_STORE_H_

// A key-value store shared by the processes of a job, for rendezvous, addresses, barriers and small work
// queues. torch.distributed's Store.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tandem::cluster {

// Thread-safe. Keys (1 byte to 4 KiB) and values (at most 64 MiB) are byte strings; InvalidArgument outside
// these limits. Errors of a remote store name its address; Unavailable means that it could not be reached.
// After any error but Unavailable the store is unchanged. A call that names several keys is atomic: it sees,
// or changes, all of them at one moment.
class Store {
 public:
  virtual ~Store() = default;
  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;
  // Waits until `key` exists and returns its value; DeadlineExceeded, naming the key, after `timeout`.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) = 0;
  // Adds to a decimal counter (an absent key counts as 0) and returns the sum. InvalidArgument if the value
  // is no number.
  virtual absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) = 0;
  // Sets the key to `desired` if its value is `expected` ("" also matches an absent key). Returns the value
  // after the call.
  virtual absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                                 absl::string_view desired) = 0;
  // Returns the value of `key`, or "" if it does not exist. Does not wait for the key. RemoteStore gives its
  // server `timeout`, and at least half a second, to answer; other stores have time-outs of their own.
  virtual absl::StatusOr<std::string> GetIfPresent(absl::string_view key, absl::Duration timeout);
  // Waits until all keys exist; DeadlineExceeded, naming the missing keys, after `timeout`.
  virtual absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) = 0;
  // Returns true if all keys exist now. Does not wait.
  virtual absl::StatusOr<bool> Check(absl::Span<const std::string> keys) = 0;
  // Appends bytes to the value (an absent key counts as ""); returns the new length in bytes.
  virtual absl::StatusOr<int64_t> Append(absl::string_view key, absl::string_view value) = 0;
  // Waits as Wait does and returns the values in the order of `keys`. InvalidArgument if they are more than
  // 256 MiB together.
  virtual absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                            absl::Duration timeout) = 0;
  // Sets each keys[i] to values[i]; at most 256 MiB together.
  virtual absl::Status MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values) = 0;
  // Deletes the key; returns true if it existed.
  virtual absl::StatusOr<bool> Delete(absl::string_view key) = 0;
  // Returns the keys that begin with `prefix`, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(absl::string_view prefix) = 0;
  virtual absl::StatusOr<int64_t> NumKeys() = 0;

  // Queues, first in first out, for many producers and consumers. Queue names obey the limits of keys but are
  // no keys: no other call sees them. An empty queue is the same as one that never existed.
  //
  // An item is given to at most one Pop. A remote Pop whose response is lost asks again and gets the same
  // item. Items are never chosen for a popper that is known to be gone. An item can be lost only if it was
  // chosen for a popper that then dies, or that cannot be reached until its time-out.
  virtual absl::Status Push(absl::string_view queue, absl::string_view value) = 0;
  // Waits until there is an item and returns it; DeadlineExceeded, naming the queue, after `timeout`.
  virtual absl::StatusOr<std::string> Pop(absl::string_view queue, absl::Duration timeout) = 0;
  virtual absl::StatusOr<int64_t> Length(absl::string_view queue) = 0;

  // Shows that the caller lives; it must be called several times in each `lease`. Other processes watch
  // `key`: if BeatsExpire(lease), the key exists as long as its last Beat is younger than about a lease;
  // otherwise it is a counter that every Beat increments. Only one process may beat for a key. Delete ends
  // it.
  virtual absl::Status Beat(absl::string_view key, absl::Duration lease) { return Add(key, 1).status(); }
  virtual bool BeatsExpire(absl::Duration lease) const { return false; }

  // Returns the store's address, for messages: "host:port" of its server or "file:///path"; empty if the
  // store lives in this process.
  virtual std::string address() const { return ""; }
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_STORE_H_
