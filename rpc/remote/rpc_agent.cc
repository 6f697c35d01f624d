// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/rpc_agent.h"
#include "rpc/security/epoch_gate.h"

#include <algorithm>
#include <functional>
#include <random>
#include <stop_token>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/trace/recorder.h"
#include "rpc/address.h"
#include "rpc/remote/agent_functions.h"
#include "rpc/remote/reference_functions.h"
#include "rpc/security/transport_security.h"
#include "rpc/wire/bulk_codec.h"
#include "tandem/v1/remote_function.pb.h"

namespace tandem::rpc::remote {
namespace {

constexpr char kService[] = "tandem.v1.RemoteFunctions";
constexpr char kCall[] = "/tandem.v1.RemoteFunctions/Call";
constexpr int kMaintenanceRunsPerLease = 4;

uint64_t NewIncarnation() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32 | device()) | 1;
}

// The agent's own functions are not counted as calls of the application.
bool IsOurs(absl::string_view function) { return absl::StartsWith(function, "tandem."); }

absl::Status CheckName(const std::string& name) {
  const auto good = [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != ','; };
  if (!name.empty() && name.size() <= 256 && std::all_of(name.begin(), name.end(), good))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("RpcAgentOptions::name: \"", name, "\" is no name; expected role/index, like worker/0"));
}

}  // namespace

RpcAgent::RpcAgent(RpcAgentOptions options, Directory* directory, Functions functions)
    : options_(std::move(options)), directory_(directory), functions_(std::move(functions)) {
  member_.name = options_.name;
  member_.incarnation = NewIncarnation();
  timers_ = std::make_unique<TimerQueue>();
  executor_ = std::make_unique<FunctionExecutor>(
      member_.name, FunctionExecutorOptions{.threads = options_.threads,
                                            .max_queued = options_.max_queued_calls,
                                            .max_queued_per_caller = options_.max_queued_calls_per_caller,
                                            .max_queued_bytes = options_.max_queued_bytes});
  references_ =
      std::make_shared<References>(this, member_.name, member_.incarnation, options_.reference_lease);
  streams_ = std::make_unique<StreamTable>();
  References::AddFunctions(&functions_, references_);
  streams_->AddFunctions(&functions_);
  AddOwnFunctions();
}

RpcAgent::~RpcAgent() {
  (void)ShutdownNow();
  executor_->End();  // running functions use the members that are destroyed next
}

absl::StatusOr<std::unique_ptr<RpcAgent>> RpcAgent::Start(RpcAgentOptions options, Directory* directory,
                                                          Functions functions) {
  TANDEM_RETURN_IF_ERROR(CheckName(options.name));
  if (options.threads < 1) return absl::InvalidArgumentError("RpcAgentOptions::threads: at least 1");
  std::unique_ptr<RpcAgent> agent(new RpcAgent(std::move(options), directory, std::move(functions)));
  ConnectOptions connect;
  connect.transport = agent->options_.transport;
  connect.channel.max_message_bytes = agent->options_.max_message_bytes;
  connect.channel.caller = agent->options_.caller;
  connect.channel.max_outstanding_bytes =
      std::max(connect.channel.max_outstanding_bytes, agent->options_.max_message_bytes);
  agent->peers_ = std::make_unique<PeerConnections>(std::move(connect), directory, agent->timers_.get());
  TANDEM_RETURN_IF_ERROR(agent->Listen());
  TANDEM_RETURN_IF_ERROR(Annotate(directory->Register(agent->member_), agent->name()));
  agent->ScheduleMaintenance();
  const absl::Time give_up = MonotonicNow() + agent->options_.start_timeout;
  for (const std::string& other : agent->options_.wait_for) {
    const absl::Duration left = std::max(give_up - MonotonicNow(), absl::ZeroDuration());
    TANDEM_RETURN_IF_ERROR(
        Annotate(directory->Lookup(other, left).status(), absl::StrCat(agent->name(), " cannot start")));
  }
  return agent;
}

absl::Status RpcAgent::Listen() {
  TANDEM_ASSIGN_OR_RETURN(const Address address, ParseAddress(options_.listen));
  ServerOptions server;
  server.listen = options_.listen;
  server.max_message_bytes = options_.max_message_bytes;
  server.max_held_request_bytes = std::max(server.max_held_request_bytes, options_.max_message_bytes);
  server.threads = options_.rpc_threads;
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const JobKey> key, ProcessKey());
  server.gate = std::make_shared<EpochGate>(*key, options_.caller);
  const std::string host = options_.advertise.empty() ? address.host : options_.advertise;
  if (!address.is_unix() && (host == "0.0.0.0" || host == "::")) {
    return absl::InvalidArgumentError(
        absl::StrCat("RpcAgentOptions::listen is ", options_.listen,
                     ": say in RpcAgentOptions::advertise under which host others reach it"));
  }
  TANDEM_ASSIGN_OR_RETURN(server_, Server::Start(server, {service()}));
  member_.address = address.is_unix()              ? options_.listen
                    : absl::StrContains(host, ":") ? absl::StrCat("[", host, "]:", server_->port())
                                                   : absl::StrCat(host, ":", server_->port());
  return absl::OkStatus();
}

Service RpcAgent::service() {
  return {kService,
          {{"Call", Right::kMember, [this](std::shared_ptr<ServerCall> call) { OnCall(std::move(call)); }}}};
}

void RpcAgent::ScheduleMaintenance() {
  timers_->Schedule(MonotonicNow() + references_->lease() / kMaintenanceRunsPerLease, [this] {
    references_->RunMaintenance();
    streams_->RunMaintenance();
    ScheduleMaintenance();
  });
}

std::shared_ptr<CallCounts> RpcAgent::CountsFor(absl::string_view function) const {
  return IsOurs(function) ? nullptr : counts_;
}

// --- Calls to this worker

void RpcAgent::OnCall(std::shared_ptr<ServerCall> server_call) {
  v1::RemoteCall header;
  Bytes payload;
  if (absl::Status parsed = DecodeBulk(server_call->request(), &header, &payload); !parsed.ok()) {
    return server_call->Finish(std::move(parsed));
  }
  if (header.protocol() != options_.protocol) {
    return RespondWithError(
        *server_call,
        absl::FailedPreconditionError(
            absl::StrCat(name(), " speaks version ", options_.protocol, " of remote calls, ", header.caller(),
                         " version ", header.protocol(), ": both must run the same release of the program")));
  }
  if (header.callee() != name() ||
      (header.callee_incarnation() != 0 && header.callee_incarnation() != member_.incarnation)) {
    return RespondWithError(
        *server_call, absl::UnavailableError(absl::StrCat(
                          "at its address there is ", header.callee() == name() ? "another life of " : "",
                          name(), " now: it has ended, and its address is used again")));
  }
  const Functions::Entry* entry = functions_.Find(header.function());
  if (entry == nullptr) {
    return RespondWithError(*server_call,
                            absl::UnimplementedError(absl::StrCat("there is no such function; there is ",
                                                                  absl::StrJoin(functions_.names(), ", "))));
  }
  if (header.fingerprint() != entry->id.fingerprint()) {
    v1::RemoteAnswer response;
    response.set_signature(entry->id.signature());
    return RespondWithError(*server_call, absl::InvalidArgumentError("the signatures differ"),
                            std::move(response));
  }
  const bool makes = header.has_keep();
  auto call = std::make_shared<WireInvocation>(this, references_, CountsFor(header.function()),
                                               std::move(server_call), std::move(header), std::move(payload),
                                               entry->id.idempotent, options_.max_message_bytes);
  if (makes) {
    if (absl::Status begun = call->BeginCreation(); !begun.ok()) return call->Fail(std::move(begun));
  }
  Dispatch(*entry, std::move(call));
}

void RpcAgent::Dispatch(const Functions::Entry& entry, std::shared_ptr<Invocation> call) {
  if (entry.options.run_inline) return entry.run(*this, call);
  executor_->Submit(std::move(call), entry.options.exclusive,
                    [this, &entry](const std::shared_ptr<Invocation>& call) { entry.run(*this, call); });
}

// --- Calls from this worker

void RpcAgent::StartTo(const CallTarget& to, std::unique_ptr<internal::OutgoingCall> call) {
  call->to = to.name;
  call->timeout = to.settings.timeout;
  if (to.settings.cancel.stop_possible()) {
    auto forward = std::make_shared<std::stop_callback<std::function<void()>>>(
        to.settings.cancel, [stop = call->stop]() mutable { stop.request_stop(); });
    call->done = [forward,
                  done = std::move(call->done)](absl::StatusOr<internal::CallResult> returned) mutable {
      std::move(done)(std::move(returned));
    };
  }
  Start(std::move(call));
}

std::shared_ptr<ReferenceHandle> RpcAgent::StartRemoteValue(const CallTarget& to,
                                                            std::unique_ptr<internal::OutgoingCall> call) {
  Promise<void> created;
  std::shared_ptr<ReferenceHandle> handle = references_->NewRemote(to.name, created.future());
  call->to = to.name;
  call->timeout = to.settings.timeout;
  call->stop = created.stop();
  call->keep = handle;
  call->done = [created](absl::StatusOr<internal::CallResult> returned) { created.Set(returned.status()); };
  Start(std::move(call));
  return handle;
}

internal::InlinePoller RpcAgent::InlinePollerFor(const std::string& name) const {
  std::shared_ptr<PeerConnection> peer = name == member_.name ? nullptr : peers_->Find(name);
  if (peer == nullptr) return nullptr;
  return [peer = std::move(peer)](absl::FunctionRef<bool()> over, absl::Time deadline) {
    const std::shared_ptr<Channel> channel = peer->channel();
    if (channel == nullptr) return;
    channel->PrepareInlinePoll();  // InlinePoll requires it, although the call has begun
    channel->InlinePoll(over, deadline);
  };
}

void RpcAgent::Start(std::unique_ptr<internal::OutgoingCall> call) {
  if (call->timeout <= absl::ZeroDuration()) call->timeout = options_.call_timeout;
  if (closed_.load()) {
    std::move(call->done)(absl::CancelledError(
        absl::StrCat(call->to, ": ", call->id.name, ": not called: ", name(), " has shut down")));
    return;
  }
  if (const uint64_t begin = trace::Begin(); ABSL_PREDICT_FALSE(begin != 0)) {
    call->done = [begin, function = call->id.name,
                  done = std::move(call->done)](absl::StatusOr<internal::CallResult> returned) mutable {
      trace::EndNamed(function, "remote", begin);
      std::move(done)(std::move(returned));
    };
  }
  call->to == name() ? StartDirect(std::move(call)) : StartRemote(std::move(call));
}

void RpcAgent::StartDirect(std::unique_ptr<internal::OutgoingCall> call) {
  const Functions::Entry* entry = functions_.Find(call->id.name);
  absl::Status refused;
  if (entry == nullptr) {
    refused = absl::UnimplementedError(
        absl::StrCat("there is no such function; there is ", absl::StrJoin(functions_.names(), ", ")));
  } else if (entry->id.fingerprint() != call->id.fingerprint()) {
    refused =
        absl::InvalidArgumentError(absl::StrCat("the signatures differ: ", name(), " calls ",
                                                call->id.signature(), " and has ", entry->id.signature()));
  }
  if (!refused.ok()) {
    std::move(call->done)(Annotate(refused, absl::StrCat(name(), ": ", call->id.name)));
    return;
  }
  const absl::Time deadline = MonotonicNow() + call->timeout;
  auto counts = CountsFor(call->id.name);
  auto invocation = std::make_shared<DirectInvocation>(this, name(), references_, std::move(counts),
                                                       timers_.get(), std::move(call), deadline);
  {
    absl::MutexLock lock(&direct_mutex_);
    if (direct_.size() > 2 * direct_alive_ + 64) {
      std::erase_if(direct_, [](const auto& weak) { return weak.expired(); });
      direct_alive_ = direct_.size();
    }
    direct_.push_back(invocation);
  }
  invocation->Watch();
  Dispatch(*entry, std::move(invocation));
}

void RpcAgent::StartRemote(std::unique_ptr<internal::OutgoingCall> call) {
  const absl::Time deadline = MonotonicNow() + call->timeout;
  // The call counts as under way from here on, although its callee may not be connected yet.
  call->done = [counted = std::make_shared<CountedCall>(CountsFor(call->id.name)),
                done = std::move(call->done)](absl::StatusOr<internal::CallResult> returned) mutable {
    counted.reset();
    std::move(done)(std::move(returned));
  };
  auto references = std::make_shared<MessageReferences>(references_, call->to);
  absl::StatusOr<Encoded> encoded = call->encode(call->arguments.get(), references.get());
  call->arguments.reset();
  absl::Status fits = encoded.status();
  if (fits.ok()) fits = CheckSize(*encoded, "an argument list", options_.max_message_bytes, name());
  if (!fits.ok()) {
    std::move(call->done)(Annotate(fits, absl::StrCat(call->to, ": ", call->id.name)));
    return;
  }
  if (const std::shared_ptr<PeerConnection> peer = peers_->Find(call->to)) {
    return SendTo(peer, std::move(call), deadline, *std::move(encoded), std::move(references));
  }
  const std::string to = call->to;
  const std::stop_token stop = call->stop.get_token();
  peers_->With(
      to, deadline, stop,
      [this, call = std::move(call), deadline, encoded = *std::move(encoded),
       references = std::move(references)](absl::StatusOr<std::shared_ptr<PeerConnection>> peer) mutable {
        if (!peer.ok()) {
          std::move(call->done)(Annotate(peer.status(), absl::StrCat(call->to, ": ", call->id.name)));
          return;
        }
        SendTo(*peer, std::move(call), deadline, std::move(encoded), std::move(references));
      });
}

namespace {

// Returns the error of a call without a response of its callee.
absl::Status NoResponse(const absl::Status& status, const PeerConnection& peer, bool stopped,
                        size_t argument_bytes) {
  absl::string_view message = status.message();
  absl::ConsumePrefix(&message, absl::StrCat(kCall, " at ", peer.member().address, ": "));
  const absl::Status gone = peer.gone();
  if (absl::IsCancelled(status) && !gone.ok()) return gone;
  if (absl::IsCancelled(status) && stopped) return absl::CancelledError("the call was cancelled");
  // The callee's limit is smaller than this worker's, or the message header made the difference.
  if (absl::IsResourceExhausted(status) && absl::StrContains(message, "max_message_bytes")) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an argument list of ", argument_bytes, " bytes: ", message, ": ", kTooLargeRemedy));
  }
  return absl::Status(status.code(), absl::StrCat(message, " (", peer.member().address, ")"));
}

absl::StatusOr<internal::CallResult> TakeResponse(const std::string& caller,
                                                  const internal::OutgoingCall& call,
                                                  absl::StatusOr<Bytes> wire, const PeerConnection& peer,
                                                  std::shared_ptr<MessageReferences> references,
                                                  size_t argument_bytes) {
  v1::RemoteAnswer response;
  internal::CallResult returned;
  const absl::Status decoded = wire.ok() ? DecodeBulk(*wire, &response, &returned.bulk) : wire.status();
  if (!decoded.ok()) {
    // The callee may still receive the call again and then hold its references under other numbers.
    if (call.id.idempotent) MessageReferences::KeepForALease(std::move(references));
    if (wire.ok()) return decoded;
    return NoResponse(wire.status(), peer, call.stop.stop_requested(), argument_bytes);
  }
  for (const v1::RenumberedFork& fork : response.renumbered()) {
    references->Renumber(
        {{fork.sent_creator(), fork.sent_number()}, {fork.held_creator(), fork.held_number()}});
  }
  if (response.code() != 0) {
    if (!response.signature().empty()) {
      response.set_error(absl::StrCat("the signatures differ: ", caller, " calls ", call.id.signature(), ", ",
                                      call.to, " has ", response.signature()));
    }
    return absl::Status(static_cast<absl::StatusCode>(response.code()), response.error());
  }
  returned.small = std::move(*response.mutable_result());
  returned.references = std::move(references);
  return returned;
}

}  // namespace

void RpcAgent::SendTo(const std::shared_ptr<PeerConnection>& peer,
                      std::unique_ptr<internal::OutgoingCall> call, absl::Time deadline, Encoded encoded,
                      std::shared_ptr<MessageReferences> references) {
  const std::shared_ptr<Channel> channel = peer->channel();
  const uint64_t number = channel == nullptr ? 0 : peer->Begin(call->stop);
  if (number == 0) {
    std::move(call->done)(Annotate(peer->gone(), absl::StrCat(call->to, ": ", call->id.name)));
    return;
  }
  v1::RemoteCall header;
  header.set_protocol(options_.protocol);
  header.set_function(call->id.name.data(), call->id.name.size());
  header.set_fingerprint(call->id.fingerprint());
  header.set_caller(name());
  header.set_caller_incarnation(member_.incarnation);
  header.set_callee(call->to);
  header.set_callee_incarnation(peer->member().incarnation);
  header.set_max_result_bytes(options_.max_message_bytes);
  const size_t argument_bytes = encoded.size();
  header.set_arguments(std::move(encoded.small));
  if (call->keep != nullptr) {
    call->keep->SetOwnerIncarnation(peer->member().incarnation);
    TANDEM_CHECK(header.mutable_keep()->ParseFromString(
        References::WireOf(*call->keep, references_->ForkOf(*call->keep))));
  }
  CallOptions options;
  options.timeout = deadline - MonotonicNow();
  options.idempotent = call->id.idempotent;
  options.cancel = call->stop.get_token();
  channel->CallAsync(kCall, EncodeBulk(header, std::move(encoded.bulk)), options,
                     [this_name = name(), peer, number, deadline, argument_bytes, call = std::move(call),
                      references = std::move(references)](absl::StatusOr<Bytes> wire) mutable {
                       peer->End(number);
                       absl::StatusOr<internal::CallResult> returned = TakeResponse(
                           this_name, *call, std::move(wire), *peer, std::move(references), argument_bytes);
                       // A result that arrives after the deadline counts as late, even if it was faster than
                       // the timer.
                       if (returned.ok() && MonotonicNow() > deadline) {
                         returned = absl::DeadlineExceededError("no answer within its deadline");
                       }
                       if (!returned.ok()) {
                         returned = Annotate(returned.status(), absl::StrCat(call->to, ": ", call->id.name));
                       }
                       std::move(call->done)(std::move(returned));
                     });
}

std::shared_ptr<Channel> RpcAgent::ChannelTo(const std::string& name) const {
  const std::shared_ptr<PeerConnection> peer = name == member_.name ? nullptr : peers_->Find(name);
  return peer == nullptr ? nullptr : peer->channel();
}

absl::Time RpcAgent::InlinePollDeadline(const CallTarget& to) const {
  const bool says = to.settings.timeout > absl::ZeroDuration();
  return MonotonicNow() + (says ? to.settings.timeout : options_.call_timeout);
}

Tensor RpcAgent::RequestTensor(const std::string& name, DType dtype, Tensor::Shape shape) const {
  Tensor plain = Tensor::Allocate(dtype, std::move(shape));
  const std::shared_ptr<Channel> channel = ChannelTo(name);
  if (channel == nullptr || plain.bytes() == 0) return plain;
  std::shared_ptr<char> memory = channel->RequestMemory(plain.bytes());
  return memory == nullptr ? plain : Tensor::Over(std::move(memory), dtype, plain.shape());
}

std::string RpcAgent::TransportTo(const std::string& name) const {
  if (name == member_.name) return "direct";
  const std::shared_ptr<Channel> channel = ChannelTo(name);
  return channel == nullptr ? "" : std::string(channel->transport());
}

}  // namespace tandem::rpc::remote
