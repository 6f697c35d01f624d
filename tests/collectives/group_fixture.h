#ifndef TANDEM_TESTS_COLLECTIVES_GROUP_FIXTURE_H_
#define TANDEM_TESTS_COLLECTIVES_GROUP_FIXTURE_H_

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/process_group.h"
#include "collectives/store/memory_store.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {

// Runs `body(group)` for each rank of a new group, each on a thread of its own, and waits for all.
inline void RunRanks(int world_size, const std::function<void(ProcessGroup&)>& body,
                     absl::Duration timeout = absl::Seconds(60)) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      ProcessGroupOptions options;
      options.rank = rank;
      options.world_size = world_size;
      options.timeout = timeout;
      auto group = InitProcessGroup(&store, options);
      TANDEM_ASSERT_OK(group);
      body(**group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_GROUP_FIXTURE_H_
