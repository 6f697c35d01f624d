// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_CONFORMANCE_RUN_RANKS_H_
#define TANDEM_TESTS_COLLECTIVES_CONFORMANCE_RUN_RANKS_H_

// Ranks as threads of this process that share a store in memory.

#include <functional>
#include <thread>
#include <vector>

#include "cluster/store/memory_store.h"
#include "collectives/process_group.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {

// Runs `body(group)` for each rank of a new group, each on a thread of its own, and waits for all. The
// options of rank r are options_of(r), except for rank and world size.
inline void RunRanks(int world_size, const std::function<ProcessGroupOptions(int rank)>& options_of,
                     const std::function<void(ProcessGroup&)>& body) {
  cluster::MemoryStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      ProcessGroupOptions options = options_of(rank);
      options.rank = rank;
      options.world_size = world_size;
      auto group = InitProcessGroup(&store, options);
      TANDEM_ASSERT_OK(group);
      body(**group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline void RunRanks(int world_size, const ProcessGroupOptions& options,
                     const std::function<void(ProcessGroup&)>& body) {
  RunRanks(
      world_size, [&](int) { return options; }, body);
}

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_CONFORMANCE_RUN_RANKS_H_
