// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_RENDEZVOUS_CUTTABLE_STORE_H_
#define TANDEM_TESTS_COLLECTIVES_RENDEZVOUS_CUTTABLE_STORE_H_

// A store from which one node can be cut off, as by a broken cable: its calls fail, those of other nodes
// continue.

#include <atomic>

#include "cluster/store/forwarding_store.h"

namespace tandem::cluster {

class CuttableStore : public ForwardingStore {
 public:
  explicit CuttableStore(Store* base) : ForwardingStore(base) {}
  void Cut() { cut_ = true; }
  void Mend() { cut_ = false; }
  // Returns the number of calls so far.
  int calls() const { return calls_; }

 protected:
  absl::Status Forward(absl::FunctionRef<absl::Status()> call) override {
    ++calls_;
    return cut_ ? absl::UnavailableError("the store cannot be reached (cut off by the test)") : call();
  }

 private:
  std::atomic<bool> cut_{false};
  std::atomic<int> calls_{0};
};

}  // namespace tandem::cluster

#endif  // TANDEM_TESTS_COLLECTIVES_RENDEZVOUS_CUTTABLE_STORE_H_
