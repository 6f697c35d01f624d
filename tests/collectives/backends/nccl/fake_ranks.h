// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_BACKENDS_NCCL_FAKE_RANKS_H_
#define TANDEM_TESTS_COLLECTIVES_BACKENDS_NCCL_FAKE_RANKS_H_

// Ranks as threads, each with an NCCL and a runtime of its own, as in separate processes.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/store/memory_store.h"
#include "cluster/store/prefix_store.h"
#include "collectives/backends/nccl/nccl_backend.h"
#include "tests/collectives/backends/nccl/fake_nccl.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives::nccl {

struct FakeRank {
  FakeRank(FakeWorld* world, cluster::MemoryStore* store, int rank, int world_size)
      : rank(rank),
        world_size(world_size),
        runtime(std::make_shared<Runtime>(world->nccl(), world->cuda(),
                                          Runtime::Options{.watch_interval = absl::Milliseconds(5)})),
        store(store) {}

  BackendOptions OptionsOf(const std::string& group, absl::Duration timeout = absl::Seconds(30)) {
    stores.push_back(std::make_unique<cluster::PrefixStore>(store, group));
    BackendOptions options;
    options.group = group;
    options.rank = rank;
    options.world_size = world_size;
    options.store = stores.back().get();
    options.peers.resize(world_size);
    options.deadline = absl::Now() + timeout;
    options.timeout = timeout;
    return options;
  }
  absl::StatusOr<std::unique_ptr<Backend>> Make(const std::string& group,
                                                absl::Duration timeout = absl::Seconds(30)) {
    return MakeFactory(runtime, 0).make(OptionsOf(group, timeout));
  }

  const int rank, world_size;
  const std::shared_ptr<Runtime> runtime;
  cluster::MemoryStore* const store;
  std::vector<std::unique_ptr<cluster::Store>> stores;
};

inline void RunFakeRanks(FakeWorld* world, int world_size, const std::function<void(FakeRank&)>& body) {
  cluster::MemoryStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      FakeRank one(world, &store, rank, world_size);
      body(one);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(world->communicators(), 0);
  EXPECT_THAT(world->misuse(), ::testing::IsEmpty());
}

inline Operation OnGpu(OpKind kind, DType dtype) {
  Operation o;
  o.kind = kind;
  o.dtype = dtype;
  o.device = Device::Cuda(0);
  o.timeout = absl::Seconds(30);
  return o;
}

inline Operation Sum(std::vector<float>* values, absl::Duration timeout = absl::Seconds(30)) {
  Operation o = OnGpu(OpKind::kAllReduce, DType::kF32);
  o.timeout = timeout;
  o.in = {values->data(), values->size()};
  o.out = {values->data(), values->size()};
  return o;
}

}  // namespace tandem::collectives::nccl

#endif  // TANDEM_TESTS_COLLECTIVES_BACKENDS_NCCL_FAKE_RANKS_H_
