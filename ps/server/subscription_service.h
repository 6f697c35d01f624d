// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_SUBSCRIPTION_SERVICE_H_
#define TANDEM_PS_SERVER_SUBSCRIPTION_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ps/server/request_handler.h"
#include "ps/server/table/table_registry.h"
#include "rpc/service.h"
#include "tandem/v1/parameter_server.pb.h"
#include "tandem/v1/subscriptions.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Answers subscribers: which rows have changed since a position (proto/tandem/v1/subscriptions.proto).
//
// The server keeps nothing for a subscriber, so that no subscriber can make it lose a change or run out of
// memory. A row's version, which updates write anyway, says whether it has changed. One thread, which begins
// with the first call, reads the rows and looks every few milliseconds whether the tables of waiting calls
// have changed. Without subscribers there is no thread, and an update does nothing more.
//
// Thread-safe.
class SubscriptionService {
 public:
  static constexpr uint32_t kDefaultBytes = 4 << 20;
  static constexpr uint32_t kMostBytes = 64 << 20;
  static constexpr absl::Duration kMostWait = absl::Minutes(1);

  // `tables` and `requests` must outlive the service. `check_serving` returns the error of calls while
  // another copy of the shard serves.
  SubscriptionService(const TableRegistry* tables, RequestHandler* requests,
                      std::function<absl::Status()> check_serving);
  ~SubscriptionService() { Stop(); }

  // Handles the method GetChanges. Does not block. Replies once the updates in the answer are durable.
  void GetChanges(const rpc::ServerCall& call, v1::GetChangesRequest request,
                  rpc::Reply<v1::GetChangesResponse> reply);
  void AddStatistics(v1::ServerStatistics* statistics) const;
  // Fails the calls that wait with Unavailable, and ends the thread. Idempotent.
  void Stop();

 private:
  using Position = v1::ChangesPosition;
  struct Waiting {
    v1::GetChangesRequest request;
    Position position;
    rpc::Reply<v1::GetChangesResponse> reply;
    absl::Time deadline;
  };

  absl::Status CheckRequest(const v1::GetChangesRequest& request) const;
  // Parses a position; an empty one is the beginning.
  absl::StatusOr<Position> Parse(const std::string& bytes) const;
  static std::string Serialize(Position position);

  void Run();
  // Answers a call if there are changes or its time is over. Returns false if it waits on.
  bool Answer(Waiting& waiting);
  // Begins a pass if a table has changed; returns whether one is under way.
  absl::StatusOr<bool> BeginPass(const v1::GetChangesRequest& request, Position* position) const;
  absl::StatusOr<v1::GetChangesResponse> Read(const v1::GetChangesRequest& request, Position position) const;
  // Returns what a subscriber has of a table that it reads from now on.
  static Position::Table Now(const ServerTable& table);

  const TableRegistry& tables_;
  RequestHandler& requests_;
  const std::function<absl::Status()> check_serving_;
  std::atomic<uint64_t> calls_{0}, rows_{0}, bytes_{0}, waiting_{0};
  std::atomic<double> cpu_s_{0};
  absl::Mutex mutex_;
  std::vector<Waiting> arrived_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_SUBSCRIPTION_SERVICE_H_
