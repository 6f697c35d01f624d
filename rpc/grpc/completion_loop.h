#ifndef TANDEM_RPC_GRPC_COMPLETION_LOOP_H_
#define TANDEM_RPC_GRPC_COMPLETION_LOOP_H_

// For rpc/grpc/*.cc only.

#include <memory>
#include <thread>
#include <utility>

#include "grpcpp/completion_queue.h"

namespace tandem::rpc {

// What a completion queue hands back when an operation is over.
class CompletionTag {
 public:
  // On the loop's thread. May destroy the tag.
  virtual void OnEvent(bool ok) = 0;
  // What to give to gRPC.
  void* tag() { return this; }

 protected:
  ~CompletionTag() = default;
};

// A tag that calls a method of its owner.
template <typename Owner>
class MemberTag final : public CompletionTag {
 public:
  MemberTag(Owner* owner, void (Owner::*method)(bool)) : owner_(owner), method_(method) {}
  void OnEvent(bool ok) override { (owner_->*method_)(ok); }

 private:
  Owner* const owner_;
  void (Owner::*const method_)(bool);
};

// A completion queue and the one thread that waits on it. Everything whose operations are on the queue is
// told of their end on that thread. All tags are CompletionTags.
class CompletionLoop {
 public:
  explicit CompletionLoop(std::unique_ptr<grpc::CompletionQueue> queue) : queue_(std::move(queue)) {}
  ~CompletionLoop() { Stop(); }

  // Once, before the first operation can end.
  void Start();
  // Waits until the operations under way are over; none may be begun any more. Idempotent; not on the loop's
  // thread.
  void Stop();

  grpc::CompletionQueue* queue() { return queue_.get(); }

 private:
  void Run();

  const std::unique_ptr<grpc::CompletionQueue> queue_;
  std::thread thread_;
  bool stopped_ = false;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_COMPLETION_LOOP_H_
