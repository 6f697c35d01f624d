// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_CLI_COMMANDS_SHARD_COPIES_H_
#define TANDEM_TESTS_CLI_COMMANDS_SHARD_COPIES_H_

// Real `tandem ps` processes: each shard has a primary and followers. A test kills and stops them; this class
// starts them again, as a launcher does.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ps/client/client.h"
#include "rpc/channel.h"
#include "tandem/v1/failover.pb.h"
#include "tests/testing/processes/relay.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::cli {

// The exit codes of a process that has handed over and could not stay, and of one that has left its shard.
inline constexpr int kComesBack = 75;
inline constexpr int kLeft = 0;

// What a client needs to find the primaries of a job's shards.
struct ShardAddresses {
  std::string store;
  std::vector<std::vector<std::string>> copies;  // [shard]
};
// Returns a client whose channels follow the primaries.
absl::StatusOr<std::unique_ptr<ps::Client>> ConnectToShards(const ShardAddresses& addresses,
                                                            const ps::ClientOptions& options);

// Not thread-safe, except Connect.
class ShardCopies {
 public:
  enum class Network {
    kDirect,
    // All connections of processes and workers go through relays, which the functions Cut... cut. Workers use
    // gRPC then.
    kRelayed,
  };
  // Returns the host at which a copy listens.
  using HostOf = std::function<std::string(uint32_t shard, uint32_t copy)>;

  // Starts shards * (followers + 1) processes and their store, and waits until all followers are in sync.
  // `lease_seconds` is that of the processes as members of their job. `store`: the address of a store that
  // others serve; "": one of this object.
  ShardCopies(uint32_t shards, uint32_t followers, HostOf host = nullptr, Network network = Network::kDirect,
              int lease_seconds = 600, std::string store = "");
  ~ShardCopies();

  // The number of copies of each shard, without added ones.
  uint32_t copies() const { return followers_ + 1; }
  ShardAddresses Addresses() const;
  // Returns a client whose channels follow the primaries. `max_lag`: ps::ClientOptions::max_lag.
  absl::StatusOr<std::unique_ptr<ps::Client>> Connect(uint32_t worker, absl::Duration timeout,
                                                      absl::Duration max_lag = absl::ZeroDuration());

  testing::TandemProcess& process(uint32_t shard, uint32_t copy) { return *At(shard, copy).process; }
  testing::TandemProcess& store() { return *store_; }
  // Kills the store with SIGKILL, and waits for its end; starts an empty one at the same address.
  void KillStore();
  void StartStore();
  const std::string& store_address() const { return store_address_; }
  // Stops a process with SIGSTOP, and waits until it stands still; it goes on with SIGCONT.
  static void Stop(testing::TandemProcess& process);
  const std::string& address(uint32_t shard, uint32_t copy) { return At(shard, copy).address; }
  // Kills the process with SIGKILL, and waits for its end.
  void Kill(uint32_t shard, uint32_t copy);
  // Starts the process again, which must have ended, and waits until it serves calls.
  void Start(uint32_t shard, uint32_t copy);
  // Waits until the process, which somebody else has deposed, ends; returns whether its error has `text`.
  bool AwaitEnd(uint32_t shard, uint32_t copy, const std::string& text);

  // Starts one more copy of a shard, which the others do not wait for, and returns its number.
  uint32_t Add(uint32_t shard);
  // Forgets the copy that was added last. It must have ended.
  void Remove(uint32_t shard);

  // These cut connections of a copy until Heal. From the store:
  void CutFromStore(uint32_t shard, uint32_t copy);
  // From the other copies of its shard:
  void CutFromCopies(uint32_t shard, uint32_t copy);
  // From a process that calls it:
  void CutFromCaller(uint32_t shard, uint32_t copy, pid_t caller);
  // What it answers to anybody is held:
  void CutAnswers(uint32_t shard, uint32_t copy);
  // From everybody:
  void Isolate(uint32_t shard, uint32_t copy);
  // Heals the network of a shard.
  void Heal(uint32_t shard);

  bool HasEnded(uint32_t shard, uint32_t copy);
  // Waits until the process, which somebody else has asked to, ends; returns its exit code.
  int AwaitExit(uint32_t shard, uint32_t copy);
  // Asks the primary to hand over to the process `to`. Works after the process has ended, and while another
  // thread uses this object for other shards.
  absl::StatusOr<v1::HandOverResponse> TryHandOver(uint32_t shard, uint32_t primary, uint32_t to,
                                                   absl::Duration timeout);
  // Asks again while the follower is too slow. OK, without a response, if the answer was lost and the primary
  // has ended.
  absl::StatusOr<v1::HandOverResponse> HandOver(uint32_t shard, uint32_t primary, uint32_t to);
  // Waits until the process, which has handed over, is in sync with its successor: the same process, unless
  // the successor's answer was lost, so that it had to end. Returns false after kTestTimeout.
  bool AwaitHandedOver(uint32_t shard, uint32_t primary);
  // Asks a process to leave its shard, again while a follower is too slow. OK, without a response, if the
  // answer was lost and the process has ended.
  absl::StatusOr<v1::LeaveResponse> Leave(uint32_t shard, uint32_t copy);

  // Asks a process what it knows. With `wait` waits so long for another version than `wait_version`, or for
  // another role.
  absl::StatusOr<v1::ReplicaStatus> Status(uint32_t shard, uint32_t copy, uint64_t wait_version = 0,
                                           absl::Duration wait = absl::ZeroDuration());
  // Waits for a serving primary whose followers are all in sync; starts processes again that have ended by
  // themselves. Returns its copy, or -1 after kTestTimeout.
  int AwaitRedundant(uint32_t shard);
  // Waits for a serving primary of a larger term. Returns its copy, or -1 after kTestTimeout.
  int AwaitTermAbove(uint32_t shard, uint64_t term);
  // Waits until a copy knows a later version of the placement. Returns false after kTestTimeout.
  bool AwaitPlacementAfter(uint32_t shard, uint64_t version);
  // Waits until `wanted` holds for what the process says. Returns false after kTestTimeout.
  bool AwaitStatus(uint32_t shard, uint32_t copy,
                   const std::function<bool(const v1::ReplicaStatus&)>& wanted);
  // Returns the output of all processes that still run, and what they know, for messages.
  std::string Describe();

 private:
  struct Process {
    std::unique_ptr<testing::TandemProcess> process;
    std::string address;
    std::unique_ptr<rpc::Channel> channel;  // past the relay
    std::unique_ptr<testing::Relay> callers, to_store;
    bool started = false;  // before: only the first process of a copy may begin the shard
  };
  Process& At(uint32_t shard, uint32_t copy) { return processes_[shard][copy]; }
  uint32_t CopiesOf(uint32_t shard) const { return static_cast<uint32_t>(processes_[shard].size()); }
  void Spawn(uint32_t shard, uint32_t copy);
  // Starts the processes of a shard again that have ended.
  void Tend(uint32_t shard);
  void AwaitListening(uint32_t shard, uint32_t copy);

  const uint32_t shards_, followers_;
  const HostOf host_;
  const Network network_;
  std::unique_ptr<testing::TandemProcess> store_;
  const std::string lease_;
  std::string store_address_;
  std::vector<std::vector<Process>> processes_;  // [shard][copy]
};

}  // namespace tandem::cli

#endif  // TANDEM_TESTS_CLI_COMMANDS_SHARD_COPIES_H_
