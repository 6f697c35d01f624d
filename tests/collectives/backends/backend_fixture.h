// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_BACKENDS_BACKEND_FIXTURE_H_
#define TANDEM_TESTS_COLLECTIVES_BACKENDS_BACKEND_FIXTURE_H_

// Groups whose ranks are threads of one process, and operations built from vectors.

#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/store/memory_store.h"
#include "collectives/backend.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {

// Returns the options of rank `rank` of `hosts.size()`; hosts[r] is rank r's host.
inline BackendOptions OptionsOf(cluster::Store* store, int rank, const std::vector<std::string>& hosts,
                                const std::string& address = "127.0.0.1") {
  BackendOptions options;
  options.group = "test";
  options.rank = rank;
  options.world_size = static_cast<int>(hosts.size());
  options.store = store;
  for (const std::string& host : hosts) options.peers.push_back({host, address, getpid()});
  options.deadline = absl::Now() + absl::Seconds(30);
  options.timeout = absl::Seconds(30);
  return options;
}

// Runs `body(backend, rank)` for each rank, each on a thread of its own, and waits for all. With
// `addresses_of_their_own` the ranks' connections are encrypted, as between hosts.
inline void RunRanks(const BackendFactory& factory, const std::vector<std::string>& hosts,
                     const std::function<void(Backend&, int)>& body, bool addresses_of_their_own = false) {
  cluster::MemoryStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    threads.emplace_back([&, rank] {
      BackendOptions options = OptionsOf(&store, rank, hosts);
      for (size_t r = 0; addresses_of_their_own && r < options.peers.size(); ++r) {
        options.peers[r].address = absl::StrCat("127.0.0.", 1 + r);
      }
      auto backend = factory.make(options);
      TANDEM_ASSERT_OK(backend);
      body(**backend, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline void RunRanks(const BackendFactory& factory, int world_size,
                     const std::function<void(Backend&, int)>& body, bool addresses_of_their_own = false) {
  RunRanks(factory, std::vector<std::string>(world_size, "host"), body, addresses_of_their_own);
}

// Returns a sum in place.
template <typename T>
Operation AllReduceOf(std::vector<T>* values, uint64_t sequence, absl::Duration timeout = absl::Seconds(60)) {
  Operation operation;
  operation.kind = OpKind::kAllReduce;
  operation.dtype = DTypeOf<T>::value;
  operation.sequence = sequence;
  operation.in = {values->data(), values->size()};
  operation.out = {values->data(), values->size()};
  operation.timeout = timeout;
  return operation;
}

inline Operation MakeBarrier(uint64_t sequence, absl::Duration timeout = absl::Seconds(60)) {
  Operation operation;
  operation.sequence = sequence;
  operation.timeout = timeout;
  return operation;
}

// Returns the send of a message of floats.
inline Operation MakeSend(const std::vector<float>& values, int to, uint32_t tag = 0,
                          absl::Duration timeout = absl::Seconds(60)) {
  Operation operation;
  operation.kind = OpKind::kSend;
  operation.dtype = DType::kF32;
  operation.root = to;
  operation.tag = tag;
  operation.in = {values.data(), values.size()};
  operation.timeout = timeout;
  return operation;
}

inline Operation RecvOf(std::vector<float>* values, int from, uint32_t tag = 0,
                        absl::Duration timeout = absl::Seconds(60)) {
  Operation operation;
  operation.kind = OpKind::kRecv;
  operation.dtype = DType::kF32;
  operation.root = from;
  operation.tag = tag;
  operation.out = {values->data(), values->size()};
  operation.timeout = timeout;
  return operation;
}

// An all-to-all of three ranks in which rank 0 sends rank 2 more than rank 2 expects; all ranks must get an
// error.
inline void CallAllToAllWithPairsThatDiffer(Backend& backend, int rank) {
  std::vector<float> in(300), out(300);
  std::vector<ConstPart> ins;
  std::vector<Part> outs;
  for (int s = 0; s < 3; ++s) {
    ins.push_back({in.data() + 100 * s, 10});
    outs.push_back({out.data() + 100 * s, 10});
  }
  if (rank == 0) ins[2].count = 12;  // rank 2 expects 10
  Operation o;
  o.kind = OpKind::kAllToAll;
  o.dtype = DType::kF32;
  o.even = false;
  o.ins = ins;
  o.outs = outs;
  o.timeout = absl::Seconds(20);
  EXPECT_THAT(
      backend.Run(o),
      testing::StatusIs(absl::StatusCode::kInvalidArgument,
                        ::testing::HasSubstr("rank 0 sends 12 elements to rank 2, which expects 10")));
}

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_BACKENDS_BACKEND_FIXTURE_H_
