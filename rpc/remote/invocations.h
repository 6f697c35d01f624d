// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_INVOCATIONS_H_
#define TANDEM_RPC_REMOTE_INVOCATIONS_H_

// Calls at the callee: WireInvocation for calls that arrived over a transport, DirectInvocation for calls
// within the process.

#include <atomic>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/remote/call/future.h"
#include "rpc/remote/call/invocation.h"
#include "rpc/remote/call/outgoing.h"
#include "rpc/remote/references.h"
#include "rpc/service.h"
#include "rpc/transport/timer_queue.h"
#include "tandem/v1/remote_function.pb.h"

namespace tandem::rpc::remote {

// Counts the calls of one worker that are under way, without those of the agent's own functions. Lives until
// the last call has ended, which may be later than the agent's end. Thread-safe.
class CallCounts {
 public:
  int64_t active() const { return active_.load(); }
  int64_t started() const { return started_.load(); }
  void Begin() {
    ++active_;
    ++started_;
  }
  void End() {
    if (--active_ == 0 && awaited_.load()) NotifyIdle();
  }
  // Returns a future that is set when no call is under way (at once if none is) to the number of calls
  // started so far.
  Future<int64_t> Idle();

 private:
  void NotifyIdle();

  std::atomic<int64_t> active_{0};
  std::atomic<int64_t> started_{0};
  std::atomic<bool> awaited_{false};  // a call that ends reads it after it has decremented active_
  absl::Mutex mutex_;
  std::vector<Promise<int64_t>> waiting_ ABSL_GUARDED_BY(mutex_);
};

// Counts one call while the object exists. `counts` may be null.
class CountedCall {
 public:
  explicit CountedCall(std::shared_ptr<CallCounts> counts) : counts_(std::move(counts)) {
    if (counts_ != nullptr) counts_->Begin();
  }
  CountedCall(CountedCall&&) = default;
  ~CountedCall() {
    if (counts_ != nullptr) counts_->End();
  }

 private:
  std::shared_ptr<CallCounts> counts_;
};

// Finishes `call` with an error. `response` may carry further fields.
void RespondWithError(ServerCall& call, const absl::Status& why, v1::RemoteAnswer response = {});

// A call that arrived over a transport.
class WireInvocation : public Invocation {
 public:
  WireInvocation(RpcAgent* agent, std::shared_ptr<References> references, std::shared_ptr<CallCounts> counts,
                 std::shared_ptr<ServerCall> call, v1::RemoteCall header, Bytes payload, bool idempotent,
                 size_t max_result_bytes);
  ~WireInvocation() override;

  // Prepares a call whose result stays here. Must be called once, before all other methods, for such a call.
  absl::Status BeginCreation();

  RpcAgent& agent() const override { return *agent_; }
  const std::string& caller() const override { return header_.caller(); }
  absl::string_view function() const override { return header_.function(); }
  absl::Time deadline() const override { return call_->deadline(); }
  bool IsCancelled() const override { return call_->IsCancelled(); }
  std::stop_token stop_token() override;
  size_t bytes() const override { return call_->request().size(); }
  Reader encoded_arguments() override {
    return Reader(header_.arguments(), payload_, message_references_.get());
  }
  Form form(std::type_index) const override { return creating_ ? Form::kStored : Form::kEncoded; }
  ReferenceScope* response_references() override { return message_references_.get(); }
  std::shared_ptr<char> ResponseMemory(size_t bytes) override { return call_->ResponseMemory(bytes); }
  void Fail(absl::Status why) override;
  void FinishEncoded(Encoded result) override;
  void FinishObject(StoredValue result) override;

 private:
  bool Finish() { return !finished_.exchange(true); }

  RpcAgent* const agent_;  // valid only while functions run
  const std::shared_ptr<References> references_;
  const CountedCall counted_;
  const std::shared_ptr<ServerCall> call_;
  const v1::RemoteCall header_;
  const Bytes payload_;
  const size_t max_result_bytes_;  // the limit of this worker
  const std::shared_ptr<MessageReferences> message_references_;
  bool creating_ = false;
  std::atomic<bool> finished_{false};
  absl::once_flag stop_once_;
  std::stop_source stop_{std::nostopstate};
};

// A call of this worker to itself, without encoding if the types match.
class DirectInvocation : public Invocation, public std::enable_shared_from_this<DirectInvocation> {
 public:
  DirectInvocation(RpcAgent* agent, const std::string& name, std::shared_ptr<References> references,
                   std::shared_ptr<CallCounts> counts, TimerQueue* timers,
                   std::unique_ptr<internal::OutgoingCall> call, absl::Time deadline);
  ~DirectInvocation() override;

  // Starts to watch the deadline and cancellation. Must be called once, before all other methods.
  void Watch();
  // Ends the call because the agent shuts down.
  void Stop();

  RpcAgent& agent() const override { return *agent_; }
  const std::string& caller() const override { return name_; }
  absl::string_view function() const override { return call_->id.name; }
  absl::Time deadline() const override { return deadline_; }
  bool IsCancelled() const override;
  std::stop_token stop_token() override { return stop_.get_token(); }
  size_t bytes() const override { return 0; }
  void* direct_arguments(std::type_index type) override {
    return type == call_->arguments_type ? call_->arguments.get() : nullptr;
  }
  Reader encoded_arguments() override;
  Form form(std::type_index result) const override;
  ReferenceScope* response_references() override { return message_references_.get(); }
  void Fail(absl::Status why) override { Complete(std::move(why)); }
  void FinishEncoded(Encoded result) override;
  void FinishObject(StoredValue result) override;

 private:
  void Complete(absl::StatusOr<internal::CallResult> returned);

  RpcAgent* const agent_;
  const std::string name_;
  const std::shared_ptr<References> references_;
  std::optional<CountedCall> counted_;
  TimerQueue* const timers_;
  const std::unique_ptr<internal::OutgoingCall> call_;
  const absl::Time deadline_;
  std::stop_source stop_;
  const std::shared_ptr<MessageReferences> message_references_;
  Encoded encoded_;
  std::atomic<bool> over_{false};
  std::atomic<bool> late_{false};  // the timer has fired
  std::optional<TimerQueue::Id> timer_;
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_INVOCATIONS_H_
