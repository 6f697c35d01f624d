// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CLIENT_REMOTE_REPLAY_H_
#define TANDEM_REPLAY_CLIENT_REMOTE_REPLAY_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "replay/client/replay.h"
#include "rpc/channel.h"

namespace google::protobuf {
class MessageLite;
}

namespace tandem::replay {

struct BatchMemory;

struct RemoteReplayOptions {
  // Names this client in reports of the server.
  std::string name = "client";
  // The longest time of one call. A call that waits longer for its table is made again, so this is not a
  // limit of how long an insert or a sample may wait.
  absl::Duration call_timeout = absl::Seconds(30);
  // The time that a call gets, for the way to the server and back, if its deadline has passed when it starts.
  absl::Duration round_trip = absl::Seconds(5);
  // Sampled batches of up to this many bytes, all batches that are in use together, are read in the memory
  // that the transport delivered. Larger ones are copied, because that memory is also needed for other calls.
  size_t max_in_place_bytes = size_t{8} << 20;
  // All calls of this object, also later ones, end with Cancelled once it is requested.
  std::stop_token cancel;
};

// The tables of a replay server. Thread-safe. Calls block; none may be made on an RPC thread.
//
// Inserts and samples are repeated after a broken connection, also to a server that has started again: each
// item is inserted once, and a repeated sample gives the same items, except those of a server that is gone.
//
// A server that has started again, or a table that has been reset, may have lost the last commit. It would
// then give items that are too old, and admit no rollouts. Each sample therefore carries the last commit that
// was made through the same object: a learner must sample and commit through one object. A sample that waits
// in a table while it is reset is made again after call_timeout.
class RemoteReplay : public Replay {
 public:
  using Options = RemoteReplayOptions;
  // Identifies one sample request among those of a sampler. Its repetitions get the same items.
  struct SampleId {
    std::string sampler;  // empty: repetitions get other items
    uint64_t incarnation = 0;
    uint64_t sequence = 0;      // counts from 1
    uint64_t acknowledged = 0;  // the answers up to this sequence have arrived
  };
  using SampleDone = absl::AnyInvocable<void(absl::StatusOr<Batch>) &&>;

  explicit RemoteReplay(std::shared_ptr<rpc::Channel> channel, const Options& options = {});
  // Batches may outlive this object. Streams must not.
  ~RemoteReplay() override = default;

  absl::Status CreateTable(const TableOptions& options) override;
  absl::StatusOr<std::unique_ptr<InsertStream>> OpenStream(absl::string_view writer) override;
  absl::StatusOr<Batch> Sample(absl::string_view table, const SampleSize& size,
                               absl::Time deadline = DefaultDeadline(),
                               absl::string_view sampler = "") override;
  absl::StatusOr<uint64_t> UpdatePriorities(absl::string_view table, absl::Span<const uint64_t> keys,
                                            absl::Span<const double> priorities) override;
  // Requests of one actor must not be made by several RemoteReplay objects at the same time. Calls for one
  // actor in several threads are made one after the other.
  absl::StatusOr<std::vector<Ticket>> Admit(absl::string_view table, const AdmitRequest& request,
                                            absl::Time deadline = DefaultDeadline()) override;
  absl::StatusOr<uint64_t> Renew(absl::string_view table, absl::Span<const uint64_t> tickets) override;
  absl::StatusOr<uint64_t> ReturnTickets(absl::string_view table,
                                         absl::Span<const uint64_t> tickets) override;
  absl::Status Commit(absl::string_view table, const CommittedVersion& version,
                      absl::Time deadline = DefaultDeadline()) override;
  absl::StatusOr<TableInfo> Info(absl::string_view table, absl::Time deadline = DefaultDeadline()) override;
  void ForgetUnanswered(absl::string_view table) override;
  // Returns the last version that was committed to the table through this object.
  std::optional<int64_t> LastCommit(absl::string_view table) const;

  // Starts one sample call. It ends with DeadlineExceeded after `timeout`; if that is 0 or less, after
  // round_trip, and the server does not wait for its table. `done` runs exactly once, on an RPC thread or
  // in this call, and must not block.
  void StartSample(const std::string& table, const SampleSize& size, const SampleId& id,
                   absl::Duration timeout, std::stop_token cancel, SampleDone done);

  // Calls `method` of the service, for what the functions above do not cover. Repeats the call after a broken
  // connection, so the method must be one that may be called twice.
  absl::Status Call(absl::string_view method, const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response) {
    return Call(method, request, response, options_.call_timeout);
  }

  const std::shared_ptr<rpc::Channel>& channel() const { return channel_; }
  const Options& options() const { return options_; }
  // Returns a number larger than all that it has returned before, also in earlier processes of this name,
  // unless the wall clock was set back: the incarnation of a writer or sampler.
  static uint64_t NewIncarnation();

 private:
  // Returns the time of one call if the caller waits for `left`.
  absl::Duration TimeOfCall(absl::Duration left) const;
  absl::Status Call(absl::string_view method, const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response, absl::Duration timeout);

  const std::shared_ptr<rpc::Channel> channel_;
  const Options options_;
  const std::shared_ptr<BatchMemory> memory_;
  // The identity of Sample's requests.
  const uint64_t incarnation_;
  const std::string sampler_;
  mutable absl::Mutex mutex_;
  uint64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 1;
  std::set<uint64_t> outstanding_ ABSL_GUARDED_BY(mutex_);  // sequences whose answers have not arrived
  // Sequences of calls that ended without an answer, by what they asked for. The server may have drawn items
  // for them, which the next such call then gets.
  std::multimap<std::string, uint64_t> unresolved_ ABSL_GUARDED_BY(mutex_);
  // The keys, table and actor, of the calls of Admit under way. There is one call for each key at a time,
  // because the server takes the requests of an actor in their order only.
  std::set<std::string> admitting_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_admit_ ABSL_GUARDED_BY(mutex_) = 1;
  // Requests of Admit that ended without an answer, by their keys. The next such call gets their tickets.
  std::map<std::string, AdmitRequest> unresolved_admits_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, CommittedVersion> commits_ ABSL_GUARDED_BY(mutex_);  // the last one to each table
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CLIENT_REMOTE_REPLAY_H_
