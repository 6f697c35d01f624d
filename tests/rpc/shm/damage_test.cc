// SPDX-License-Identifier: Apache-2.0
// Tests a peer that writes arbitrary data anywhere, at any time.

#include <atomic>
#include <cstring>
#include <thread>

#include "absl/time/clock.h"
#include "base/random.h"
#include "rpc/shm/layout.h"
#include "rpc/shm/link.h"
#include "tests/rpc/echo_service.h"
#include "tests/rpc/shm/link_pair.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc::shm {
namespace {

using rpc::testing::Pattern;
using testing::LinkPair;
using testing::Request;
using testing::Response;

// Damages words of the control area, the rings and the release counters while both ends send messages. Each
// end may continue or break with DataLoss. It never crashes and never waits forever.
TEST(DamageTest, RandomWordsBreakTheConnectionOrDoNoHarm) {
  const std::string large = Pattern(100000);
  int broken = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    LinkPair pair;
    CounterRandom random(seed, 5);
    const auto damage = [&] {
      const size_t end = random.Below(3) == 0 ? sizeof(Control) : pair.geometry.payload_offset[0];
      const uint64_t word = random.Below(2) == 0 ? random() : random.Below(1 << 16);
      std::memcpy(pair.memory->data() + random.Below(end / 8) * 8, &word, sizeof(word));
    };
    for (int step = 0; step < 400 && !pair.client->broken() && !pair.server->broken(); ++step) {
      pair.client->Send(Request(step, Bytes(step % 3 == 0 ? large : std::string("small"))));
      if (step >= 20) damage();
      Message got;
      while (pair.server->Receive(&got)) {
        // The received bytes may be read, wherever they are.
        pair.server->Send(Response(got.call, Bytes(got.body.Flatten())));
      }
      if (step >= 20) damage();
      while (pair.client->Receive(&got)) (void)got.body.Flatten();
      pair.client->MoveQueue();
      pair.server->MoveQueue();
      (void)pair.client->BorrowMemory(70000);
    }
    for (Link* link : {pair.client.get(), pair.server.get()}) {
      if (!link->broken()) continue;
      ++broken;
      EXPECT_EQ(link->failure().code(), absl::StatusCode::kDataLoss) << link->failure();
    }
  }
  EXPECT_GT(broken, 20);
}

// Like the test above, with the damage done by another thread at any moment.
TEST(DamageTest, WordsThatChangeWhileTheyAreReadDoNoHarm) {
  for (uint64_t seed = 0; seed < 15; ++seed) {
    LinkPair pair;
    std::atomic<bool> stop{false};
    std::thread vandal([&] {
      CounterRandom random(seed, 6);
      while (!stop.load()) {
        // Only the records: damaged counters would end the connection too early.
        const size_t at =
            pair.geometry.records_offset[random.Below(2)] + random.Below(pair.geometry.records_bytes / 8) * 8;
        reinterpret_cast<std::atomic<uint64_t>*>(pair.memory->data() + at)->store(random.Below(300));
        for (int i = 0; i < 2000; ++i) ipc::Pause();
      }
    });
    const std::string large = Pattern(50000);
    const absl::Time end = absl::Now() + absl::Milliseconds(100);
    for (int step = 0; absl::Now() < end && !pair.client->broken() && !pair.server->broken(); ++step) {
      pair.client->Send(Request(step, Bytes(step % 3 == 0 ? large : std::string(500, 's'))));
      Message got;
      while (pair.server->Receive(&got)) pair.server->Send(Response(got.call, Bytes(got.body.Flatten())));
      while (pair.client->Receive(&got)) (void)got.body.Flatten();
      pair.client->MoveQueue();
      pair.server->MoveQueue();
    }
    stop.store(true);
    vandal.join();
  }
}

}  // namespace
}  // namespace tandem::rpc::shm
