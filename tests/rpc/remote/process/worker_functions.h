// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_RPC_REMOTE_PROCESS_WORKER_FUNCTIONS_H_
#define TANDEM_TESTS_RPC_REMOTE_PROCESS_WORKER_FUNCTIONS_H_

// The functions of the workers in these tests.

#include <cstdint>
#include <string>
#include <vector>

#include "rpc/remote/rpc_agent.h"

namespace tandem::rpc::remote::testing {

inline constexpr absl::Duration kTestLease = absl::Seconds(5);

// A value with a number. Its worker keeps a list of the living ones.
class Thing {
 public:
  TANDEM_REMOTE_CLASS(Thing)
  explicit Thing(int64_t id);
  ~Thing();
  const int64_t id;
};

inline constexpr Function<Thing(int64_t)> kMakeThing{"make_thing"};
// Creates a thing with this number at `owner` and keeps a reference to it.
inline constexpr Function<void(int64_t, std::string)> kCreate{"create"};
// Passes a copy of its reference to thing `id` to `to`, which keeps it.
inline constexpr Function<void(int64_t, std::string)> kPass{"pass"};
inline constexpr Function<void(int64_t, RRef<Thing>)> kTake{"take"};
// Releases its reference to the thing.
inline constexpr Function<void(int64_t)> kDrop{"drop"};
inline constexpr Function<void()> kDropAll{"drop_all"};
// Reads the thing's number through its reference.
inline constexpr Function<int64_t(int64_t)> kUse{"use"};
inline constexpr Function<int64_t(RRef<Thing>)> kIdOf{"id_of"};
// Waits until no things live here except some of these, or until this many seconds have passed. Returns the
// numbers of the others that still live.
inline constexpr Function<std::vector<int64_t>(std::vector<int64_t>, double)> kLiving{"living"};

inline constexpr Function<void()> kCrash{"crash"};
inline constexpr Function<void()> kExit{"exit"};
inline constexpr Function<void(double)> kSleep{"sleep"};
inline constexpr Function<int64_t()> kPid{"pid"};

}  // namespace tandem::rpc::remote::testing

#endif  // TANDEM_TESTS_RPC_REMOTE_PROCESS_WORKER_FUNCTIONS_H_
