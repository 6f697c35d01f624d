#ifndef TANDEM_RPC_REMOTE_RPC_AGENT_H_
#define TANDEM_RPC_REMOTE_RPC_AGENT_H_

// A worker that calls functions in others and serves its own. torch.distributed.rpc's vocabulary: RpcSync,
// RpcAsync, Remote.
//
//   TANDEM_ASSIGN_OR_RETURN(auto agent, Agent::Start({.name = "worker/0"}, &directory,
//   std::move(functions))); TANDEM_ASSIGN_OR_RETURN(Tensor c, agent->RpcSync("worker/1", kMatMul, a, b));

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

inline constexpr uint32_t kRemoteProtocol = 1;

struct RpcAgentOptions {
  std::string name;                    // "role/index": others call it by that
  std::string listen = "127.0.0.1:0";  // "host:port" or "unix:/path"; port 0 lets the kernel pick
  std::string advertise = "";          // the host under which others reach it; empty: that of `listen`
  std::string transport = "auto";      // "auto", "grpc" or "shm" (rpc/connect.h), as caller
  int threads = 16;                    // that run functions, started as they are needed
  int rpc_threads = 0;                 // that read requests (ServerOptions::threads)
  // Of calls that wait for a thread; further ones end with ResourceExhausted.
  size_t max_queued_calls = 16384;
  size_t max_queued_calls_per_caller = 4096;
  size_t max_queued_bytes = size_t{1} << 30;
  size_t max_message_bytes = size_t{1} << 30;       // of a call's arguments, or its result
  absl::Duration call_timeout = absl::Seconds(60);  // of calls that name none
  // A reference whose holder is silent for longer is released.
  absl::Duration reference_lease = absl::Seconds(10);
  // Workers without whom nothing can begin: Start waits until all of them have registered, for
  // `start_timeout`. Without that an agent that comes first and shuts down at once would not know that others
  // are to come.
  std::vector<std::string> wait_for;
  absl::Duration start_timeout = absl::Seconds(60);
  // ShutdownNow waits so long for functions to see that they are cancelled.
  absl::Duration abrupt_timeout = absl::Seconds(5);
  // This process's place in its job (collectives::Environment::caller): callers of another epoch are refused
  // by name, as are its own calls by workers of another. Epoch 0: none are.
  Caller caller = {};
  // What this process takes its version of the protocol for; for tests.
  uint32_t protocol = kRemoteProtocol;
};

// Thread-safe. The destructor shuts down abruptly, and then waits a minute for functions that run on all the
// same: they may use what goes with the agent, so that it ends the process, naming them, rather than let
// them. It, and Shutdown, are not for RPC threads, nor for functions that the agent runs. RRefs, futures and
// streams may outlive it: they then end with errors.
class RpcAgent : private Runtime {
 public:
  // Serves `functions` and registers under its name. `directory` outlives the agent. Errors: InvalidArgument
  // (no name, a bad address), AlreadyExists (a living worker has the name), Unavailable (cannot listen),
  // DeadlineExceeded naming who of `wait_for` has not come.
  static absl::StatusOr<std::unique_ptr<RpcAgent>> Start(RpcAgentOptions options, Directory* directory,
                                                         Functions functions);
  ~RpcAgent() override;

  const std::string& name() const { return member_.name; }
  const Member& member() const { return member_; }
  // "host:port" where it listens.
  const std::string& address() const { return member_.address; }
  Directory& directory() const { return *directory_; }

  // Calls a function of another worker, or of this one (directly, without encoding). Errors begin with the
  // names of callee and function, and say what the function said, or why it was not reached: docs/rpc.md has
  // the table. Blocks; not on an RPC thread.
  template <typename R, typename... Args, typename... Given>
  ResultOf<R> RpcSync(const CallTarget& to, const Function<R(Args...)>& function, Given&&... arguments) {
    const std::shared_ptr<Channel> channel = ChannelTo(to.name);
    if (channel != nullptr) channel->PrepareInlinePoll();
    const Future<R> future = RpcAsync(to, function, std::forward<Given>(arguments)...);
    if (channel != nullptr) channel->InlinePoll([&future] { return future.ready(); }, HelpUntil(to));
    return future.Wait();
  }
  // The same without waiting. Never blocks on the network or the callee.
  template <typename R, typename... Args, typename... Given>
  Future<R> RpcAsync(const CallTarget& to, const Function<R(Args...)>& function, Given&&... arguments);
  // The result stays with its callee, who owns it; the reference is there at once.
  template <typename R, typename... Args, typename... Given>
  RRef<R> Remote(const CallTarget& to, const Function<R(Args...)>& function, Given&&... arguments);
  // A reference to a value that this worker owns.
  template <typename T>
  RRef<T> Own(std::shared_ptr<T> value);

  // A tensor in memory from which the transport to `name` sends without another copy, if it has any and is
  // connected.
  Tensor RequestTensor(const std::string& name, DType dtype, Tensor::Shape shape) const;
  // "tcp", "unix", "shm" or "direct"; empty while not connected.
  std::string TransportTo(const std::string& name) const;

  // Waits until no worker has calls under way and every worker in the directory wants to shut down, then
  // leaves. DeadlineExceeded, naming those that do not, after `timeout` and at most a second in which they
  // are asked why: then it has left abruptly. Idempotent.
  absl::Status Shutdown(absl::Duration timeout);
  // Leaves at once: calls under way end with Cancelled, here and at their callers with Unavailable, and
  // functions that run see that they are cancelled. DeadlineExceeded, naming those that have not returned
  // after `abrupt_timeout`: they still run, though nobody calls this worker any more. May be called again to
  // wait for them.
  absl::Status ShutdownNow();

  // What is there, for tests and debugging.
  References& references() const { return *references_; }
  const std::shared_ptr<References>& shared_references() const { return references_; }
  const std::shared_ptr<CallCounts>& counts() const { return counts_; }
  size_t queued_calls() const { return executor_->queued(); }
  // Waits until so many wait for a thread; false when `deadline` came first.
  bool AwaitQueuedCalls(size_t count, absl::Time deadline) const {
    return executor_->AwaitQueued(count, deadline);
  }
  // Starts a call whose types the caller knows.
  void Start(std::unique_ptr<internal::OutgoingCall> call);

 private:
  RpcAgent(RpcAgentOptions options, Directory* directory, Functions functions);
  absl::Status Listen();
  void AddOwnFunctions();

  FunctionExecutor& executor() override { return *executor_; }
  TimerQueue& timers() override { return *timers_; }
  StreamTable& streams() override { return *streams_; }

  // What RpcAsync and Remote do whatever the types.
  void StartTo(const CallTarget& to, std::unique_ptr<internal::OutgoingCall> call);
  std::shared_ptr<ReferenceHandle> StartKeeping(const CallTarget& to,
                                                std::unique_ptr<internal::OutgoingCall> call);
  // Null when there is nobody to help.
  internal::Helper HelperFor(const std::string& name) const;

  void OnCall(std::shared_ptr<ServerCall> server_call);
  void Dispatch(const Functions::Entry& entry, std::shared_ptr<Invocation> call);
  void StartDirect(std::unique_ptr<internal::OutgoingCall> call);
  void StartRemote(std::unique_ptr<internal::OutgoingCall> call);
  void SendTo(const std::shared_ptr<PeerConnection>& peer, std::unique_ptr<internal::OutgoingCall> call,
              absl::Time deadline, Encoded encoded, std::shared_ptr<MessageReferences> references);
  void ScheduleMaintenance();
  absl::Status WaitUntilAllAreDone(absl::Time deadline);
  // Why `others` are not done.
  std::string WhoIsBusy(const std::map<std::string, absl::Status>& others);
  // Ends everything but functions that run.
  void Leave();
  std::shared_ptr<CallCounts> CountsFor(absl::string_view function) const;
  // Null while not connected, and to oneself.
  std::shared_ptr<Channel> ChannelTo(const std::string& name) const;
  absl::Time HelpUntil(const CallTarget& to) const;

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
  const Promise<void> finishing_;  // set when it wants to shut down, with an error when it leaves without
  std::atomic<bool> closed_{false};

  absl::Mutex direct_mutex_;
  std::vector<std::weak_ptr<DirectInvocation>> direct_ ABSL_GUARDED_BY(direct_mutex_);  // some are over
  size_t direct_alive_ ABSL_GUARDED_BY(direct_mutex_) = 0;  // at the last clean-up

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
  if (internal::Helper helper = HelperFor(to.name)) promise.SetHelper(std::move(helper));
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
  return RRef<R>(StartKeeping(to, std::move(call)));
}

template <typename T>
RRef<T> RpcAgent::Own(std::shared_ptr<T> value) {
  return RRef<T>(references_->Own({std::move(value), &ValueTypeOf<T>()}));
}

// RRef's ways to call, which need the whole Agent.
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
  if (home == nullptr) return Future<R>::Ready(AgentIsGone());
  const References::Use use(home.get());
  if (use.agent() == nullptr) return Future<R>::Ready(AgentIsGone());
  return use.agent()->RpcAsync(CallTarget(owner(), settings), function, *this,
                               std::forward<Given>(arguments)...);
}

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_RPC_AGENT_H_
