// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/invocations.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::rpc::remote {

namespace {

// Returns a response with the forks that this worker holds under other numbers, and nothing else yet.
v1::RemoteAnswer NewResponse(const MessageReferences& references) {
  v1::RemoteAnswer response;
  for (const RenumberedReference& reference : references.renumbered()) {
    v1::RenumberedFork* const fork = response.add_renumbered();
    fork->set_sent_creator(reference.sent.first);
    fork->set_sent_number(reference.sent.second);
    fork->set_held_creator(reference.held.first);
    fork->set_held_number(reference.held.second);
  }
  return response;
}

}  // namespace

// --- Counting

Future<int64_t> CallCounts::Idle() {
  Promise<int64_t> promise;
  {
    absl::MutexLock lock(&mutex_);
    awaited_.store(true);
    waiting_.push_back(promise);
  }
  if (active_.load() == 0) NotifyIdle();
  return promise.future();
}

void CallCounts::NotifyIdle() {
  std::vector<Promise<int64_t>> told;
  {
    absl::MutexLock lock(&mutex_);
    if (active_.load() > 0) return;  // the end of that call calls NotifyIdle again
    awaited_.store(false);
    told.swap(waiting_);
  }
  const int64_t started = started_.load();
  for (const Promise<int64_t>& promise : told) promise.Set(started);
}

void RespondWithError(ServerCall& call, const absl::Status& why, v1::RemoteAnswer response) {
  response.set_code(static_cast<uint32_t>(why.raw_code()));
  response.set_error(std::string(why.message()));
  call.Finish(EncodeBulk(response, {}));
}

// --- Over a transport

WireInvocation::WireInvocation(RpcAgent* agent, std::shared_ptr<References> references,
                               std::shared_ptr<CallCounts> counts, std::shared_ptr<ServerCall> call,
                               v1::RemoteCall header, Bytes payload, bool idempotent, size_t max_result_bytes)
    : agent_(agent),
      references_(std::move(references)),
      counted_(std::move(counts)),
      call_(std::move(call)),
      header_(std::move(header)),
      payload_(std::move(payload)),
      max_result_bytes_(max_result_bytes),
      message_references_(std::make_shared<MessageReferences>(
          references_, header_.caller(), idempotent ? call_->deadline() : absl::InfinitePast())) {}

WireInvocation::~WireInvocation() { Fail(absl::InternalError("it gave no answer")); }

absl::Status WireInvocation::BeginCreation() {
  const v1::RemoteReference& keep = header_.keep();
  TANDEM_RETURN_IF_ERROR(references_->BeginCreation(
      {keep.creator(), keep.number()}, {keep.fork_creator(), keep.fork_number()}, header_.caller()));
  creating_ = true;
  return absl::OkStatus();
}

std::stop_token WireInvocation::stop_token() {
  absl::call_once(stop_once_, [this] {
    stop_ = std::stop_source();
    call_->OnCancel([stop = stop_]() mutable { stop.request_stop(); });
  });
  return stop_.get_token();
}

void WireInvocation::Fail(absl::Status why) {
  if (!Finish()) return;
  if (creating_) references_->FinishCreation({header_.keep().creator(), header_.keep().number()}, why);
  RespondWithError(*call_, why, NewResponse(*message_references_));
}

void WireInvocation::FinishEncoded(Encoded result) {
  const bool caller_takes_less =
      header_.max_result_bytes() > 0 && header_.max_result_bytes() < max_result_bytes_;
  const size_t limit = caller_takes_less ? header_.max_result_bytes() : max_result_bytes_;
  const std::string& whose = caller_takes_less ? header_.caller() : header_.callee();
  if (absl::Status fits = CheckSize(result, "a result", limit, whose); !fits.ok())
    return Fail(std::move(fits));
  if (!Finish()) return;
  v1::RemoteAnswer response = NewResponse(*message_references_);
  response.set_result(std::move(result.small));
  call_->Finish(EncodeBulk(response, std::move(result.bulk)));
  MessageReferences::KeepForALease(message_references_);
}

void WireInvocation::FinishObject(StoredValue result) {
  if (!Finish()) return;
  references_->FinishCreation({header_.keep().creator(), header_.keep().number()}, std::move(result));
  call_->Finish(EncodeBulk(NewResponse(*message_references_), {}));
}

// --- Within the process

DirectInvocation::DirectInvocation(RpcAgent* agent, const std::string& name,
                                   std::shared_ptr<References> references, std::shared_ptr<CallCounts> counts,
                                   TimerQueue* timers, std::unique_ptr<internal::OutgoingCall> call,
                                   absl::Time deadline)
    : agent_(agent),
      name_(name),
      references_(std::move(references)),
      counted_(std::move(counts)),
      timers_(timers),
      call_(std::move(call)),
      deadline_(deadline),
      stop_(call_->stop),
      message_references_(std::make_shared<MessageReferences>(references_, name_)) {}

DirectInvocation::~DirectInvocation() { Complete(absl::InternalError("it gave no answer")); }

void DirectInvocation::Watch() {
  if (call_->keep != nullptr) (void)references_->BeginCreation(call_->keep->key(), {0, 0}, name_);
  const std::weak_ptr<DirectInvocation> weak = weak_from_this();
  timer_ = timers_->Schedule(deadline_, [weak] {
    const std::shared_ptr<DirectInvocation> alive = weak.lock();
    if (alive == nullptr) return;
    alive->late_.store(true);
    alive->Complete(absl::DeadlineExceededError("no answer within its deadline"));
    alive->stop_.request_stop();
  });
  on_stop_.emplace(stop_.get_token(), [weak] {
    if (const auto alive = weak.lock()) alive->Complete(absl::CancelledError("the call was cancelled"));
  });
}

void DirectInvocation::Stop() {
  Complete(absl::CancelledError("this worker has shut down"));
  stop_.request_stop();
}

bool DirectInvocation::IsCancelled() const { return stop_.stop_requested() || MonotonicNow() > deadline_; }

Reader DirectInvocation::encoded_arguments() {
  absl::StatusOr<Encoded> encoded = call_->encode(call_->arguments.get(), message_references_.get());
  if (!encoded.ok()) {
    Reader reader("", {});
    reader.Fail(encoded.status());
    return reader;
  }
  encoded_ = *std::move(encoded);
  return Reader(encoded_.small, encoded_.bulk, message_references_.get());
}

Invocation::Form DirectInvocation::form(std::type_index result) const {
  if (call_->keep != nullptr) return Form::kStored;
  return result == call_->result_type ? Form::kDirect : Form::kEncoded;
}

void DirectInvocation::FinishEncoded(Encoded result) {
  internal::CallResult returned;
  returned.small = std::move(result.small);
  returned.bulk = std::move(result.bulk);
  returned.references = message_references_;
  Complete(std::move(returned));
}

void DirectInvocation::FinishObject(StoredValue result) {
  internal::CallResult returned;
  returned.object = std::move(result);
  Complete(std::move(returned));
}

void DirectInvocation::Complete(absl::StatusOr<internal::CallResult> returned) {
  if (over_.exchange(true)) return;
  if (!late_.load() && timer_.has_value()) timers_->Cancel(*timer_);
  // A function that returned because of the deadline has no result, even if it was faster than the timer.
  if (returned.ok() && MonotonicNow() > deadline_)
    returned = absl::DeadlineExceededError("no answer within its deadline");
  if (call_->keep != nullptr) {
    absl::StatusOr<StoredValue> made =
        returned.ok() ? absl::StatusOr<StoredValue>(std::move(returned->object)) : returned.status();
    references_->FinishCreation(call_->keep->key(), std::move(made));
    if (returned.ok()) returned = internal::CallResult();
  }
  if (!returned.ok()) returned = Annotate(returned.status(), absl::StrCat(name_, ": ", call_->id.name));
  counted_.reset();
  std::move(call_->done)(std::move(returned));
}

}  // namespace tandem::rpc::remote
