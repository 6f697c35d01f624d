// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_RPC_AGENT_H_
#define TANDEM_RPC_REMOTE_RPC_AGENT_H_

// The RPC agent of a worker: calls functions in other workers and serves its own. The vocabulary is that of
// torch.distributed.rpc: RpcSync, RpcAsync, Remote.
//
//   TANDEM_ASSIGN_OR_RETURN(
//       auto agent, RpcAgent::Start({.name = "worker/0"}, &directory, std::move(functions)));
//   TANDEM_ASSIGN_OR_RETURN(Tensor c, agent->RpcSync("worker/1", kMatMul, a, b));

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "rpc/connect.h"
#include "rpc/remote/call/functions.h"
#include "rpc/remote/call/future.h"
#include "rpc/remote/call/outgoing.h"
#include "rpc/remote/directory.h"
#include "rpc/remote/invocations.h"
#include "rpc/remote/peer_connections.h"
#include "rpc/remote/references.h"
#include "rpc/remote/rref.h"
#include "rpc/remote/stream_table.h"
#include "rpc/server.h"

namespace tandem::rpc::remote {

// The version of the protocol of remote calls. A worker refuses calls of another version.
inline constexpr uint32_t kRemoteProtocol = 1;

struct RpcAgentOptions {
  // "role/index", such as "worker/0": the name under which other workers call this one. Unique in the
  // directory.
  std::string name;
  // "host:port" or "unix:/path". Port 0 lets the kernel choose one.
  std::string listen = "127.0.0.1:0";
  // The host under which other workers reach this one. Empty: the host of `listen`. Required if `listen` is a
  // wildcard address.
  std::string advertise = "";
  // The transport of outgoing calls: "auto", "grpc" or "shm" (rpc/connect.h).
  std::string transport = "auto";
  // The largest number of threads that run functions, at least 1. They are started when they are needed.
  int threads = 16;
  // The number of threads that read requests (ServerOptions::threads).
  int rpc_threads = 0;
  // Limits of the calls that wait for a thread. Further calls end with ResourceExhausted.
  size_t max_queued_calls = 16384;
  size_t max_queued_calls_per_caller = 4096;
  size_t max_queued_bytes = size_t{1} << 30;
  // The largest size of a call's arguments, and of its result.
  size_t max_message_bytes = size_t{1} << 30;
  // The timeout of calls whose CallSettings name none.
  absl::Duration call_timeout = absl::Seconds(60);
  // The owner of a value releases a reference that its holder has not renewed for this long.
  absl::Duration reference_lease = absl::Seconds(10);
  // Start waits until these workers have registered, for at most `start_timeout`. Without this list, a worker
  // that starts first and shuts down at once cannot know that others are still to come.
  std::vector<std::string> wait_for;
  absl::Duration start_timeout = absl::Seconds(60);
  // The longest time for which ShutdownNow waits for running functions to notice that they are cancelled.
  absl::Duration abrupt_timeout = absl::Seconds(5);
  // The job and epoch of this process (cluster::Environment::caller). A call between processes of
  // different epochs is refused with an error that names both. Epoch 0: no call is refused.
  Caller caller = {};
  // The version of the protocol that this agent speaks. Only tests change it.
  uint32_t protocol = kRemoteProtocol;
};

// The RPC agent of one worker.
//
// The destructor calls ShutdownNow and then waits for up to a minute for functions that still run. They may
// use objects that are destroyed together with the agent; if they have not returned by then, the destructor
// ends the process with a message that names them.
//
// Thread-safe. Shutdown and the destructor must not be called on an RPC thread or in a function that the
// agent runs. RRefs, futures and streams may outlive the agent; their operations then return errors.
class RpcAgent : private Runtime {
 public:
  // Starts to serve `functions` and registers options.name in `directory`. Blocks until all of
  // options.wait_for have registered. `directory` must outlive the agent. Errors:
  //
  // - InvalidArgument: the name, the address or the number of threads is invalid
  // - AlreadyExists: a living worker has this name
  // - Unavailable: cannot listen on the address
  // - DeadlineExceeded: a worker of `wait_for`, which the message names, did not register in time
  static absl::StatusOr<std::unique_ptr<RpcAgent>> Start(RpcAgentOptions options, Directory* directory,
                                                         Functions functions);
  ~RpcAgent() override;

  // Returns the service that it serves, whose handlers refer to this object.
  rpc::Service service();

  const std::string& name() const { return member_.name; }
  const Member& member() const { return member_; }
  // Returns "host:port" or "unix:/path", as other workers reach this one.
  const std::string& address() const { return member_.address; }
  Directory& directory() const { return *directory_; }

  // Calls a function of another worker, or of this worker (directly, without encoding), and returns its
  // result. The message of an error begins with the names of the callee and the function. It continues with
  // the error that the function returned, or the reason why the function was not reached (docs/rpc.md has a
  // table of the errors). Blocks for at most the call's timeout. Must not be called on an RPC thread.
  template <typename R, typename... Args, typename... Given>
  ResultOf<R> RpcSync(const CallTarget& to, const Function<R(Args...)>& function, Given&&... arguments) {
    const std::shared_ptr<Channel> channel = ChannelTo(to.name);
    if (channel != nullptr) channel->PrepareInlinePoll();
    const Future<R> future = RpcAsync(to, function, std::forward<Given>(arguments)...);
    if (channel != nullptr) channel->InlinePoll([&future] { return future.ready(); }, InlinePollDeadline(to));
    return future.Wait();
  }
  // Starts the same call and returns a future of its result. Never blocks on the network or the callee.
  template <typename R, typename... Args, typename... Given>
  Future<R> RpcAsync(const CallTarget& to, const Function<R(Args...)>& function, Given&&... arguments);
  // Starts the same call, but leaves the result at the callee, which owns it. Returns a reference to the
  // result at once; the value may not exist yet. Never blocks on the network or the callee.
  template <typename R, typename... Args, typename... Given>
  RRef<R> Remote(const CallTarget& to, const Function<R(Args...)>& function, Given&&... arguments);
  // Returns a reference to `value`, of which this worker becomes the owner.
  template <typename T>
  RRef<T> Own(std::shared_ptr<T> value);

  // Returns a tensor of unspecified contents for an argument of a call to `name`. If the worker is connected
  // and its transport supports that, the tensor lies in memory that is sent without another copy; else in
  // ordinary memory.
  Tensor RequestTensor(const std::string& name, DType dtype, Tensor::Shape shape) const;
  // Returns how calls reach `name`: "tcp", "unix", "shm", or "direct" for this worker itself. Returns ""
  // while `name` is not connected.
  std::string TransportTo(const std::string& name) const;

  // Waits until every worker in the directory has called Shutdown and no worker has calls under way, then
  // leaves the directory and stops serving. Idempotent: later calls return the first result.
  //
  // Returns DeadlineExceeded if that takes longer than `timeout`. The agent then asks the others for the
  // reason (at most one second), names them in the message, and leaves like ShutdownNow. Other errors: those
  // of ShutdownNow.
  absl::Status Shutdown(absl::Duration timeout);
  // Leaves the directory and stops serving at once. Calls under way end with Cancelled here and with
  // Unavailable at their callers. Running functions see that they are cancelled.
  //
  // Returns DeadlineExceeded, naming the functions, if some have not returned after `abrupt_timeout`. They
  // still run, but no call reaches this worker any more. A further call waits for them again.
  absl::Status ShutdownNow();

  // Runs `task` on the agent's timer thread after `delay`, unless the agent ends before. `task` must not
  // block.
  void RunAfter(absl::Duration delay, TimerQueue::Task task) {
    timers_->Schedule(MonotonicNow() + delay, std::move(task));
  }

  // These functions are for tests and debugging.
  References& references() const { return *references_; }
  const std::shared_ptr<References>& shared_references() const { return references_; }
  const std::shared_ptr<CallCounts>& counts() const { return counts_; }
  size_t queued_calls() const { return executor_->queued(); }
  // Waits until exactly `count` calls wait for a thread. Returns false if `deadline` comes first.
  bool AwaitQueuedCalls(size_t count, absl::Time deadline) const {
    return executor_->AwaitQueued(count, deadline);
  }
  // Starts a call whose types are known only at run time, as RRef needs it to fetch a value.
  void Start(std::unique_ptr<internal::OutgoingCall> call);

 private:
  RpcAgent(RpcAgentOptions options, Directory* directory, Functions functions);
  absl::Status Listen();
  void AddOwnFunctions();

  FunctionExecutor& executor() override { return *executor_; }
  TimerQueue& timers() override { return *timers_; }
  StreamTable& streams() override { return *streams_; }

  // The parts of RpcAsync and Remote that do not depend on the types.
  void StartTo(const CallTarget& to, std::unique_ptr<internal::OutgoingCall> call);
  std::shared_ptr<ReferenceHandle> StartRemoteValue(const CallTarget& to,
                                                    std::unique_ptr<internal::OutgoingCall> call);
  // Returns a function that lets a waiting thread receive from `name` (rpc::Channel::InlinePoll). Returns
  // null for this worker itself and while `name` is not connected.
  internal::InlinePoller InlinePollerFor(const std::string& name) const;

  void OnCall(std::shared_ptr<ServerCall> server_call);
  void Dispatch(const Functions::Entry& entry, std::shared_ptr<Invocation> call);
  void StartDirect(std::unique_ptr<internal::OutgoingCall> call);
  void StartRemote(std::unique_ptr<internal::OutgoingCall> call);
  void SendTo(const std::shared_ptr<PeerConnection>& peer, std::unique_ptr<internal::OutgoingCall> call,
              absl::Time deadline, Encoded encoded, std::shared_ptr<MessageReferences> references);
  void ScheduleMaintenance();
  absl::Status AwaitAllWorkers(absl::Time deadline);
  // Asks the `others`, by name, why they are not done, and returns the text for an error.
  std::string DescribeBusyWorkers(const std::map<std::string, absl::Status>& others);
  // Ends everything except running functions.
  void Leave();
  // Returns null for the agent's own functions ("tandem.*"), which are not counted.
  std::shared_ptr<CallCounts> CountsFor(absl::string_view function) const;
  // Returns null for this worker itself and while `name` is not connected.
  std::shared_ptr<Channel> ChannelTo(const std::string& name) const;
  // Returns the deadline of a call to `to` that starts now.
  absl::Time InlinePollDeadline(const CallTarget& to) const;

  const RpcAgentOptions options_;
  Directory* const directory_;
  Functions functions_;
  Member member_;
  std::unique_ptr<TimerQueue> timers_;
  std::unique_ptr<FunctionExecutor> executor_;
  std::shared_ptr<References> references_;
  std::unique_ptr<StreamTable> streams_;
  std::unique_ptr<PeerConnections> peers_;
  std::unique_ptr<Server> server_;

  const std::shared_ptr<CallCounts> counts_ = std::make_shared<CallCounts>();
  // Set when this worker wants to shut down; set to an error when it leaves abruptly.
  const Promise<void> finishing_;
  std::atomic<bool> closed_{false};

  absl::Mutex direct_mutex_;
  // Calls of this worker to itself. Calls that have ended are removed now and then.
  std::vector<std::weak_ptr<DirectInvocation>> direct_ ABSL_GUARDED_BY(direct_mutex_);
  size_t direct_alive_ ABSL_GUARDED_BY(direct_mutex_) = 0;  // number of calls after the last removal

  absl::Mutex shutdown_mutex_;
  bool shut_down_ ABSL_GUARDED_BY(shutdown_mutex_) = false;
  absl::Status shutdown_status_ ABSL_GUARDED_BY(shutdown_mutex_);
};

template <typename R, typename... Args, typename... Given>
Future<R> RpcAgent::RpcAsync(const CallTarget& to, const Function<R(Args...)>& function,
                             Given&&... arguments) {
  static_assert(sizeof...(Args) == sizeof...(Given), "the function takes another number of arguments");
  static_assert(std::is_void_v<R> || Sendable<R>, "such a result is not sent: call the function by Remote");
  Promise<R> promise;
  auto call = std::make_unique<internal::OutgoingCall>(function.id(), typeid(std::tuple<Args...>),
                                                       typeid(internal::ValueOf<R>));
  call->stop = promise.stop();
  call->arguments = std::make_shared<std::tuple<Args...>>(std::forward<Given>(arguments)...);
  call->encode = &internal::EncodeArguments<Args...>;
  call->done = internal::Fulfil<R>(promise);
  if (internal::InlinePoller inline_poller = InlinePollerFor(to.name))
    promise.SetInlinePoller(std::move(inline_poller));
  StartTo(to, std::move(call));
  return promise.future();
}

template <typename R, typename... Args, typename... Given>
RRef<R> RpcAgent::Remote(const CallTarget& to, const Function<R(Args...)>& function, Given&&... arguments) {
  static_assert(sizeof...(Args) == sizeof...(Given), "the function takes another number of arguments");
  static_assert(!std::is_void_v<R>, "there is no value to refer to");
  auto call = std::make_unique<internal::OutgoingCall>(function.id(), typeid(std::tuple<Args...>), typeid(R));
  call->arguments = std::make_shared<std::tuple<Args...>>(std::forward<Given>(arguments)...);
  call->encode = &internal::EncodeArguments<Args...>;
  return RRef<R>(StartRemoteValue(to, std::move(call)));
}

template <typename T>
RRef<T> RpcAgent::Own(std::shared_ptr<T> value) {
  return RRef<T>(references_->Own({std::move(value), &ValueTypeOf<T>()}));
}

// Members of RRef that need the complete type RpcAgent.
template <typename T>
template <typename R, typename... Args, typename... Given>
ResultOf<R> RRef<T>::RpcSync(const Function<R(Args...)>& function, Given&&... arguments) const {
  return RpcAsync({}, function, std::forward<Given>(arguments)...).Wait();
}

template <typename T>
template <typename R, typename... Args, typename... Given>
Future<R> RRef<T>::RpcAsync(const CallSettings& settings, const Function<R(Args...)>& function,
                            Given&&... arguments) const {
  const std::shared_ptr<References> home = handle_->home();
  if (home == nullptr) return Future<R>::Ready(AgentHasShutDown());
  const References::Use use(home.get());
  if (use.agent() == nullptr) return Future<R>::Ready(AgentHasShutDown());
  return use.agent()->RpcAsync(CallTarget(owner(), settings), function, *this,
                               std::forward<Given>(arguments)...);
}

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_RPC_AGENT_H_
