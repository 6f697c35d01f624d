// SPDX-License-Identifier: Apache-2.0
// A worker process of the tests: remote_worker NAME STORE_ADDRESS

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "cluster/join.h"
#include "cluster/rendezvous/store_directory.h"
#include "cluster/store/remote_store.h"
#include "rpc/channel.h"
#include "tests/rpc/remote/process/worker_functions.h"

namespace tandem::rpc::remote::testing {
namespace {

// The state of the process. Things are created and destroyed in any thread, and the test asks for them.
struct Living {
  absl::Mutex mutex;
  std::set<int64_t> ids ABSL_GUARDED_BY(mutex);
};
Living& LiveProcesses() {
  static Living* const living = new Living;
  return *living;
}

struct Held {
  absl::Mutex mutex;
  std::multimap<int64_t, RRef<Thing>> references ABSL_GUARDED_BY(mutex);

  absl::StatusOr<RRef<Thing>> Find(int64_t id) {
    absl::MutexLock lock(&mutex);
    const auto found = references.find(id);
    if (found == references.end()) return absl::InternalError("the test asks for what is not held");
    return found->second;
  }
};

Functions Serve(Held* held) {
  Functions functions;
  functions.Add(kMakeThing, [](int64_t id) { return std::make_unique<Thing>(id); });
  functions.Add(kCreate, [held](const Context& context, int64_t id, const std::string& owner) {
    RRef<Thing> thing = context.agent().Remote(owner, kMakeThing, id);
    const absl::Status made = thing.WaitUntilCreated();
    if (!made.ok()) return made;
    absl::MutexLock lock(&held->mutex);
    held->references.emplace(id, std::move(thing));
    return absl::OkStatus();
  });
  functions.Add(kPass, [held](const Context& context, int64_t id, const std::string& to) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const RRef<Thing> thing, held->Find(id));
    return context.agent().RpcSync(to, kTake, id, thing);
  });
  functions.Add(kTake, [held](int64_t id, RRef<Thing> thing) {
    absl::MutexLock lock(&held->mutex);
    held->references.emplace(id, std::move(thing));
  });
  functions.Add(kDrop, [held](int64_t id) {
    RRef<Thing> dropped;  // destroyed without the lock
    absl::MutexLock lock(&held->mutex);
    const auto found = held->references.find(id);
    if (found == held->references.end()) return absl::InternalError("the test drops what is not held");
    dropped = std::move(found->second);
    held->references.erase(found);
    return absl::OkStatus();
  });
  functions.Add(kDropAll, [held] {
    std::multimap<int64_t, RRef<Thing>> dropped;
    absl::MutexLock lock(&held->mutex);
    dropped.swap(held->references);
  });
  functions.Add(kUse, [held](int64_t id) -> absl::StatusOr<int64_t> {
    TANDEM_ASSIGN_OR_RETURN(const RRef<Thing> thing, held->Find(id));
    return thing.RpcSync(kIdOf);
  });
  functions.Add(kIdOf, [](const RRef<Thing>& thing) -> absl::StatusOr<int64_t> {
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Thing> local, thing.LocalValue());
    return local->id;
  });
  functions.Add(kLiving, [](const std::vector<int64_t>& but, double seconds) {
    const std::set<int64_t> expected(but.begin(), but.end());
    std::vector<int64_t> others;
    const auto none = [&]() ABSL_SHARED_LOCKS_REQUIRED(LiveProcesses().mutex) {
      others.clear();
      for (const int64_t id : LiveProcesses().ids) {
        if (expected.count(id) == 0) others.push_back(id);
      }
      return others.empty();
    };
    absl::MutexLock lock(&LiveProcesses().mutex);
    LiveProcesses().mutex.AwaitWithTimeout(absl::Condition(&none), absl::Seconds(seconds));
    return others;
  });
  functions.Add(kCrash, [] { std::abort(); });
  functions.Add(kExit, [] { _exit(3); });
  // Stands for a long computation.
  functions.Add(kSleep, [](double seconds) { absl::SleepFor(absl::Seconds(seconds)); });
  functions.Add(kPid, [] { return static_cast<int64_t>(::getpid()); });
  return functions;
}

absl::Status Run(const std::string& name, const std::string& store_address) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Channel> channel, cluster::ConnectStore(store_address));
  cluster::RemoteStore store(std::move(channel));
  TANDEM_ASSIGN_OR_RETURN(const auto directory, cluster::StoreDirectory::Open(&store, {.lease = kTestLease}));
  Held held;
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<RpcAgent> agent,
                          RpcAgent::Start({.name = name, .threads = 64, .reference_lease = kTestLease},
                                          directory.get(), Serve(&held)));
  // Runs until the test ends it.
  const absl::Status done = store.Get("done", absl::Hours(1)).status();
  {
    absl::MutexLock lock(&held.mutex);
    held.references.clear();
  }
  return done;
}

}  // namespace

Thing::Thing(int64_t id) : id(id) {
  absl::MutexLock lock(&LiveProcesses().mutex);
  LiveProcesses().ids.insert(id);
}

Thing::~Thing() {
  absl::MutexLock lock(&LiveProcesses().mutex);
  LiveProcesses().ids.erase(id);
}

}  // namespace tandem::rpc::remote::testing

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc != 3) return 2;
  const absl::Status status = tandem::rpc::remote::testing::Run(argv[1], argv[2]);
  if (!status.ok()) std::fprintf(stderr, "%s: %s\n", argv[1], status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
