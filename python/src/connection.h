// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_CONNECTION_H_
#define TANDEM_PYTHON_SRC_CONNECTION_H_

// The ways in which a Python program reaches parameter servers. No function needs the GIL.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ps/client/client.h"
#include "ps/server/parameter_server.h"
#include "python/src/job_member.h"

namespace tandem::python {

struct ConnectionOptions {
  absl::Duration timeout = absl::Seconds(60);  // of each call, and of the wait for other processes
  absl::Duration checkpoint_timeout = absl::Minutes(10);
  uint64_t max_bytes_in_flight = uint64_t{1} << 30;
  absl::Duration max_lag = absl::ZeroDuration();  // ps::ClientOptions
  std::function<bool()> go_on_waiting;            // ps::ClientOptions
  uint64_t pinned_bytes = uint64_t{64} << 20;     // ps::ClientOptions
};

// Counts the calls under way on a connection, so that it can be closed after them. Thread-safe.
class CallCounter {
 public:
  // A call under way: it ends when the token is destroyed, on any thread. Movable.
  class Token {
   public:
    explicit Token(std::shared_ptr<CallCounter> counter) : counter_(std::move(counter)) {}
    Token(Token&& other) noexcept = default;
    Token& operator=(Token&& other) = delete;
    ~Token() {
      if (counter_ != nullptr) counter_->End();
    }

   private:
    std::shared_ptr<CallCounter> counter_;  // null: moved from
  };

  // Counts a call. Returns nullopt after Refuse.
  static std::optional<Token> Begin(const std::shared_ptr<CallCounter>& counter);
  // Refuses calls from now on.
  void Refuse();
  bool refuses() const { return refuses_.load(); }
  // Blocks until no call is under way, at most `seconds`; returns whether none is. Call it without the GIL.
  bool WaitForEnd(double seconds) const;

 private:
  void End();

  mutable absl::Mutex mutex_;
  std::atomic<bool> refuses_{false};  // written under the mutex
  uint64_t under_way_ ABSL_GUARDED_BY(mutex_) = 0;
};

// How a program stops using a connection.
enum class Ending {
  kFinished,  // it has done its work
  kFailed,    // it fails
  kExits,     // it has not said: the process exits, or drops the connection
};

// A client of parameter servers, with what it needs: the connection to its job, or servers in this process.
// Thread-safe.
class Connection {
 public:
  // Joins the job that the environment describes (`tandem run`). Blocks until its servers are there, at most
  // options.timeout; errors name the missing ones.
  static absl::StatusOr<std::unique_ptr<Connection>> ToJob(const ConnectionOptions& options);
  // Connects to servers by address ("host:port"), without being one of the processes of their job. Fences off
  // no process of the same rank before the first push (PreparePush).
  //
  // `worker` is this connection's rank. Without it the rank is 0, or, if a launcher has started the servers,
  // one that no worker of the job has: the connection registers (tandem.v1.ParameterServer/Register). Open
  // connections of a process have different ranks; a later one, and one of a later process with the same host
  // and process id, may get a rank again. A `read_only` connection has no rank, and changes nothing on the
  // servers.
  static absl::StatusOr<std::unique_ptr<Connection>> ToServers(const std::vector<std::string>& addresses,
                                                               std::optional<uint32_t> worker, bool read_only,
                                                               const ConnectionOptions& options);
  // Starts `servers` parameter servers in this process and connects to them without a network. Tables with
  // `spill` keep rows below `spill_directory`; empty: they are refused.
  static absl::StatusOr<std::unique_ptr<Connection>> ToLocalServers(int servers,
                                                                    const std::string& spill_directory,
                                                                    const ConnectionOptions& options);
  // Cancels calls under way. Unless End was called before, it leaves the job only if a launcher has started
  // the process, and sees how it ends; otherwise the job fails a lease later.
  ~Connection();

  ps::Client* client() { return client_.get(); }
  const std::shared_ptr<CallCounter>& calls() const { return calls_; }
  // Takes a push epoch, which fences off an earlier process of this worker. Blocks at most options.timeout.
  // Errors: those of ps::Client::StartPushEpoch.
  absl::Status StartPushEpoch();
  // Does the same unless this connection has a push epoch. Must be called before a push or a write of rows.
  absl::Status PreparePush();
  bool ready_to_push() const { return has_push_epoch_.load(); }

  // Tells the job how this process has ended. Called once, at the end. Blocks some seconds if other processes
  // do not respond. Without a job, only pushes deferred gradients.
  //
  //   kFinished  Pushes deferred gradients and, unless another part of the program needs it, leaves the job;
  //              the process that hosts the store ends the job.
  //   kFailed    Ends the job for all members: it has failed for `reason`.
  //   kExits     Leaves the job if a launcher, which sees the exit status, has started the process. Otherwise
  //              says nothing, and the job fails a lease later, as after a crash.
  void End(Ending ending, const std::string& reason);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  // Returns the servers' addresses; empty if they are in this process.
  const std::vector<std::string>& addresses() const { return addresses_; }
  // Returns Unavailable with the reason once the job has failed elsewhere, else OK.
  absl::Status job_status() const;

 private:
  Connection() = default;

  absl::Status StartPushEpochLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(push_epoch_mutex_);

  const std::shared_ptr<CallCounter> calls_ = std::make_shared<CallCounter>();
  std::shared_ptr<const int> number_;  // among the connections of this process that have registered
  int rank_ = 0, world_size_ = 1;
  bool ended_ = false;  // End was called
  std::vector<std::string> addresses_;
  absl::Mutex push_epoch_mutex_;  // held while a push epoch is taken
  std::atomic<bool> has_push_epoch_{false};
  // Destroyed from the last to the first: the client's calls end before the objects that serve them.
  std::shared_ptr<JobMember> job_;  // nullptr: this is no connection to a job
  std::vector<std::unique_ptr<ps::ParameterServer>> local_servers_;
  std::unique_ptr<ps::Client> client_;
};

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_CONNECTION_H_
