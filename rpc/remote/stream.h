// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_STREAM_H_
#define TANDEM_RPC_REMOTE_STREAM_H_

// Remote functions that receive or send a sequence of items.
//
//   inline constexpr StreamFunction<void, std::string, std::string> kTokens{"tokens"};  // the server sends
//   inline constexpr StreamFunction<Tensor, double> kSum{"sum"};                        // the client sends
//   inline constexpr StreamFunction<Tensor, Tensor, int64_t> kPipe{"pipe"};             // both send
//
//   AddStream(functions, kTokens, [](ServerStream<void, std::string>& stream, std::string prompt) {
//     ... TANDEM_RETURN_IF_ERROR(stream.Write(token)); ...
//     return absl::OkStatus();
//   });
//   TANDEM_ASSIGN_OR_RETURN(auto stream, OpenStream(*agent, "worker/1", kTokens, prompt));
//   while (true) { TANDEM_ASSIGN_OR_RETURN(auto token, stream->Read()); if (!token) break; ... }
//
// At most 64 items, or 8 MiB, wait at either end; a writer then blocks. A stream occupies one of its server's
// threads until its function returns. If a client leaves or is silent, the server cancels the stream after
// about half a minute. A client that lets 32 or more items wait for Read, and writes nothing, counts as
// silent.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "rpc/remote/client_stream.h"
#include "rpc/remote/rpc_agent.h"
#include "rpc/remote/stream_functions.h"
#include "rpc/remote/stream_table.h"

namespace tandem::rpc::remote {

// The result of the call that opens a stream: its number at the server. The type shows the items' types in
// signatures.
template <typename In, typename Out>
struct StreamNumber {
  uint64_t value = 0;
};

template <typename In, typename Out>
struct Codec<StreamNumber<In, Out>> {
  static std::string Name() { return absl::StrCat("stream<", TypeName<In>(), ", ", TypeName<Out>(), ">"); }
  static void Encode(Writer& writer, const StreamNumber<In, Out>& number) { writer.Varint(number.value); }
  static bool Decode(Reader& reader, StreamNumber<In, Out>* number) { return reader.Varint(&number->value); }
};

// Declares a stream: the client sends items of type In, the server sends items of type Out. Either may be
// void. A literal type: declare it constexpr. `name` must outlive it.
template <typename In, typename Out, typename... Args>
class StreamFunction {
 public:
  constexpr explicit StreamFunction(const char* name) : open_(name) {}
  // The function that opens the stream.
  const Function<StreamNumber<In, Out>(Args...)>& open() const { return open_; }
  // Returns, for example, "pipe(i64) -> stream<tensor, tensor>".
  std::string signature() const { return open_.signature(); }

 private:
  const Function<StreamNumber<In, Out>(Args...)> open_;
};

// The server's end of a stream. Valid until the function that serves the stream returns. One thread may read
// while another one writes.
template <typename In, typename Out>
class ServerStream {
 public:
  ServerStream(RpcAgent* agent, std::string caller, std::shared_ptr<StreamState> state)
      : agent_(agent), caller_(std::move(caller)), state_(std::move(state)) {}

  RpcAgent& agent() const { return *agent_; }
  const std::string& caller() const { return caller_; }
  // Returns true if the client has cancelled the stream or left, or this worker shuts down.
  bool IsCancelled() const { return state_->cancelled(); }
  std::stop_token stop_token() const { return state_->stop_token(); }

  // Returns the client's next item, or nullopt if the client has ended its side or the stream is cancelled
  // (IsCancelled()). Blocks until an item arrives.
  absl::StatusOr<std::optional<In>> Read() requires(!std::is_void_v<In>) {
    std::optional<StreamItem> item = state_->Read();
    if (!item.has_value()) return std::optional<In>();
    absl::StatusOr<In> value = DecodeItem<In>(*item);
    if (!value.ok()) return value.status();
    return std::optional<In>(*std::move(value));
  }
  // Sends an item. Blocks while the client is too far behind in reading. Cancelled: the stream is cancelled.
  template <typename T>
  absl::Status Write(const T& value) requires(!std::is_void_v<Out>) {
    absl::StatusOr<StreamItem> item = EncodeItem<Out>(value);
    return item.ok() ? state_->Write(*std::move(item)) : item.status();
  }

 private:
  RpcAgent* const agent_;
  const std::string caller_;
  const std::shared_ptr<StreamState> state_;
};

// The client's end of a stream. The destructor cancels the stream if it has not ended. Thread-safe.
template <typename In, typename Out>
class ClientStream {
 public:
  explicit ClientStream(std::shared_ptr<ClientStreamCore> core) : core_(std::move(core)) {}
  ~ClientStream() { Cancel(); }
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  // Returns the server's next item. Blocks until an item arrives or the stream has ended. After the last
  // item, returns nullopt if the function has returned OK, its error if it has failed, or the reason why the
  // stream has ended (ClientStreamCore).
  absl::StatusOr<std::optional<internal::ValueOf<Out>>> Read() {
    absl::StatusOr<std::optional<StreamItem>> item = core_->Read();
    if (!item.ok()) return item.status();
    if (!item->has_value()) return std::optional<internal::ValueOf<Out>>();
    if constexpr (std::is_void_v<Out>) {
      return absl::InternalError("an item came that nobody gives");
    } else {
      absl::StatusOr<Out> value = DecodeItem<Out>(**item);
      if (!value.ok()) return value.status();
      return std::optional<Out>(*std::move(value));
    }
  }
  // Sends an item. Blocks while the server is too far behind in reading. Returns an error if the stream has
  // ended; Cancelled if it has ended with OK.
  template <typename T>
  absl::Status Write(const T& value) requires(!std::is_void_v<In>) {
    absl::StatusOr<StreamItem> item = EncodeItem<In>(value);
    return item.ok() ? core_->Write(*std::move(item)) : item.status();
  }
  // Ends the client's side: further items are refused. Blocks until the server has received all items.
  absl::Status EndWrites() requires(!std::is_void_v<In>) { return core_->EndWrites(); }
  // Ends the stream, unless it has ended. Read then returns the items that had arrived, after these
  // Cancelled; Write returns Cancelled. The function sees that it is cancelled.
  void Cancel() { core_->Cancel(absl::CancelledError("the stream was cancelled")); }

 private:
  const std::shared_ptr<ClientStreamCore> core_;
};

// Serves `function` with `body(ServerStream<In, Out>&, Args...)`, which returns an absl::Status. Several
// threads may call `body` at the same time.
template <typename In, typename Out, typename... Args, typename Body>
Functions& AddStream(Functions& functions, const StreamFunction<In, Out, Args...>& function, Body body) {
  using Number = StreamNumber<In, Out>;
  auto shared = std::make_shared<Body>(std::move(body));
  return functions.AddEntry(
      {function.open().id(), {}, [shared](Runtime& runtime, const std::shared_ptr<Invocation>& call) {
         std::tuple<Args...> arguments;
         bool read = false;
         internal::Guarded(call, [&] { read = internal::TakeArguments(*call, &arguments); });
         if (!read) return;
         const auto [number, state] = runtime.streams().Open();
         RpcAgent* const agent = &call->agent();
         ServerStream<In, Out> stream(agent, call->caller(), state);
         internal::Reply(*call, std::make_shared<Number>(Number{number}));
         absl::Status status;
         try {
           status =
               std::apply([&](Args&... each) { return (*shared)(stream, std::move(each)...); }, arguments);
         } catch (const std::exception& e) {
           status = absl::InternalError(absl::StrCat("it threw an exception: ", e.what()));
         } catch (...) {
           status = absl::InternalError("it threw an exception of an unknown type");
         }
         state->Finish(std::move(status));
       }});
}

// Opens a stream to a worker. Blocks until its function has begun. Errors: those of RpcAgent::RpcSync.
// `to.settings.timeout` limits the whole stream; without one, a stream ends only by itself or by silence.
template <typename In, typename Out, typename... Args, typename... Given>
absl::StatusOr<std::unique_ptr<ClientStream<In, Out>>> OpenStream(
    RpcAgent& agent, const CallTarget& to, const StreamFunction<In, Out, Args...>& function,
    Given&&... arguments) {
  const absl::Time deadline = to.settings.timeout > absl::ZeroDuration()
                                  ? MonotonicNow() + to.settings.timeout
                                  : absl::InfiniteFuture();
  absl::StatusOr<StreamNumber<In, Out>> number =
      agent.RpcSync(to, function.open(), std::forward<Given>(arguments)...);
  if (!number.ok()) return number.status();
  const std::optional<Member> server = agent.directory().Find(to.name);
  if (!server.has_value()) return absl::UnavailableError(absl::StrCat(to.name, " has left"));
  auto core = std::make_shared<ClientStreamCore>(agent.shared_references(), agent.counts(),
                                                 absl::StrCat(to.name, ": ", function.open().name()), *server,
                                                 number->value, deadline);
  core->Begin();
  return std::make_unique<ClientStream<In, Out>>(std::move(core));
}

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_STREAM_H_
