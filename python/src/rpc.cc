// SPDX-License-Identifier: Apache-2.0
#include "python/src/rpc.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "cluster/environment.h"
#include "nanobind/stl/map.h"
#include "nanobind/stl/pair.h"
#include "nanobind/stl/shared_ptr.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/unique_ptr.h"
#include "nanobind/stl/vector.h"
#include "python/src/call.h"
#include "python/src/errors.h"
#include "python/src/helper_thread.h"
#include "python/src/process.h"
#include "python/src/rpc_node.h"
#include "python/src/rpc_values.h"
#include "rpc/remote/call/invocation.h"

namespace nb = nanobind;

namespace tandem::python {
namespace {

using rpc::remote::BatchOptions;
using rpc::remote::CallTarget;
using rpc::remote::Context;
using rpc::remote::Functions;
using rpc::remote::FunctionTraits;
using rpc::remote::Future;
using rpc::remote::RRef;
using rpc::remote::Untyped;
using rpc::remote::UntypedMessage;

// Messages below this are encoded and copied with the GIL, which takes less time than releasing it.
constexpr size_t kReleaseGilBytes = 32 << 10;

size_t SizeOf(const UntypedMessage& message) {
  size_t bytes = message.data.size();
  for (const rpc::remote::Tensor& tensor : message.tensors) bytes += tensor.bytes();
  return bytes;
}

template <typename Body>
auto WithoutGilIfLarge(size_t bytes, Body body) {
  std::optional<GilReleased> release;
  if (bytes >= kReleaseGilBytes) release.emplace();
  return body();
}

void CheckProcess(uint64_t made) {
  if (ForkGeneration() == made) return;
  Raise(
      absl::FailedPreconditionError("this process was forked after tandem.rpc.start(), and threads do not "
                                    "survive a fork; start processes that use "
                                    "tandem.rpc by multiprocessing's method 'spawn'"));
}

// The call that a function serves, as Python sees it: valid while the function runs.
class RpcContext {
 public:
  explicit RpcContext(const Context& context) : caller_(context.caller()), context_(context) {}
  void End() { context_.reset(); }

  const std::string& caller() const { return caller_; }
  bool cancelled() const { return !context_.has_value() || context_->IsCancelled(); }
  double seconds_left() const {
    return context_.has_value() ? absl::ToDoubleSeconds(context_->deadline() - MonotonicNow()) : 0.0;
  }

 private:
  const std::string caller_;
  std::optional<Context> context_;
};

// Runs a Python function for a call.
absl::StatusOr<Untyped> Serve(RpcHooks* hooks, int number, const Context& context, const Untyped& argument) {
  TANDEM_ASSIGN_OR_RETURN(UntypedMessage message, argument.message());
  CopyTensors(&hooks->memory, &message);
  const bool keep = context.KeepsResult<Untyped>();
  const GilOfForeignThread gil;
  try {
    hooks->released.Clear();
    const auto context_of_python = std::make_shared<RpcContext>(context);
    const nb::tuple parts = ToPython(std::move(message), /*writable=*/true);
    const nb::object outcome = CallFromForeignThread(
        hooks->serve,
        nb::make_tuple(number, parts[0], parts[1], parts[2], keep, nb::cast(context_of_python)));
    context_of_python->End();
    return OutcomeFromPython(hooks, outcome);
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

// Runs a batched Python function for several calls.
absl::StatusOr<std::vector<absl::StatusOr<Untyped>>> ServeBatch(RpcHooks* hooks, int number,
                                                                std::vector<std::tuple<Untyped>> calls) {
  const GilOfForeignThread gil;
  try {
    hooks->released.Clear();
    nb::list messages;
    for (const auto& [call] : calls) {
      TANDEM_ASSIGN_OR_RETURN(UntypedMessage message, call.message());
      messages.append(ToPython(std::move(message), /*writable=*/false));
    }
    const nb::object outcomes = CallFromForeignThread(hooks->serve_batch, nb::make_tuple(number, messages));
    std::vector<absl::StatusOr<Untyped>> results;
    for (nb::handle outcome : nb::borrow<nb::list>(outcomes)) {
      results.push_back(OutcomeFromPython(hooks, nb::borrow(outcome)));
    }
    return results;
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

// A call under way.
class RpcCall {
 public:
  RpcCall(Future<Untyped> future, RpcHooks* hooks)
      : hooks_(hooks), future_(LeakAfterFork(std::make_unique<Future<Untyped>>(std::move(future)))) {}

  bool done() const { return future().ready(); }
  bool Wait(double timeout_s) const {
    const Future<Untyped>& future = this->future();
    return WaitInSlices(timeout_s, [&future](double seconds) {
      (void)future.Wait(absl::Seconds(seconds));
      return future.ready();
    });
  }
  // Returns (0, data, tensors, references), (-1, object) or (status code, text). The call has ended.
  nb::object Outcome() const {
    const absl::StatusOr<Untyped> result = future().Wait();
    hooks_->released.Clear();
    if (!result.ok())
      return nb::make_tuple(result.status().raw_code(), std::string(result.status().message()));
    if (const auto* object = dynamic_cast<const PythonValue*>(result->object().get()); object != nullptr) {
      return nb::make_tuple(-1, object->value());
    }
    UntypedMessage message = ValueOrRaise(result->message());
    WithoutGilIfLarge(SizeOf(message), [&] { CopyTensors(&hooks_->memory, &message); });
    const nb::tuple parts = ToPython(std::move(message), /*writable=*/true);
    return nb::make_tuple(0, parts[0], parts[1], parts[2]);
  }
  void WhenFinished(std::shared_ptr<FinishedCalls> queue, uint64_t number) const {
    (void)future().Then(
        [queue = std::move(queue), number](const absl::StatusOr<Untyped>&) { queue->Add(number); });
  }
  void Cancel() const { future().Cancel(); }

 private:
  const Future<Untyped>& future() const {
    CheckProcess(made_);
    return *future_;
  }

  const uint64_t made_ = ForkGeneration();
  RpcHooks* const hooks_;
  std::shared_ptr<Future<Untyped>> future_;
};

// A function that Python serves.
struct ServedFunction {
  std::string name;
  bool batched = false;
  int max_batch = 32;
  double max_delay_s = 0.002;
  std::string exclusive;
};

// The agent of this process.
class PyRpcAgent {
 public:
  PyRpcAgent(std::unique_ptr<RpcNode> node, RpcHooks* hooks)
      : hooks_(hooks), node_(LeakAfterFork(std::move(node))) {}
  ~PyRpcAgent() {
    if (ForkGeneration() != made_) return;
    GilReleased release;
    // The destructor of an agent ends the process if functions go on for a minute.
    if (functions_run_ || !node_->agent->ShutdownNow().ok()) new std::shared_ptr<RpcNode>(node_);
    node_.reset();
  }

  const std::string& name() const { return node_->agent->name(); }
  const std::string& address() const { return node_->agent->address(); }
  std::map<std::string, std::string> Workers() const {
    CheckProcess(made_);
    std::map<std::string, std::string> addresses;
    for (const auto& [name, member] : node_->directory->List()) addresses[name] = member.address;
    return addresses;
  }
  std::string TransportTo(const std::string& to) const {
    CheckProcess(made_);
    return node_->agent->TransportTo(to);
  }

  std::unique_ptr<RpcCall> Start(const std::string& to, const std::string& function, nb::bytes data,
                                 nb::list tensors, nb::list references, double timeout_s,
                                 bool idempotent) const {
    CheckProcess(made_);
    hooks_->released.Clear();
    UntypedMessage message = MessageFromPython(hooks_, data, tensors, references);
    const CallTarget target(to, {.timeout = absl::Seconds(timeout_s)});
    const auto declared = node_->names->Get(function, FunctionTraits{.idempotent = idempotent});
    return std::make_unique<RpcCall>(WithoutGilIfLarge(SizeOf(message),
                                                       [&, node = node_] {
                                                         return node->agent->RpcAsync(
                                                             target, declared, Untyped(std::move(message)));
                                                       }),
                                     hooks_);
  }
  std::unique_ptr<RpcReference> Remote(const std::string& to, const std::string& function, nb::bytes data,
                                       nb::list tensors, nb::list references, double timeout_s) const {
    CheckProcess(made_);
    hooks_->released.Clear();
    UntypedMessage message = MessageFromPython(hooks_, data, tensors, references);
    const CallTarget target(to, {.timeout = absl::Seconds(timeout_s)});
    const auto declared = node_->names->Get(function);
    return std::make_unique<RpcReference>(WithoutGilIfLarge(SizeOf(message), [&, node = node_] {
      return node->agent->Remote(target, declared, Untyped(std::move(message)));
    }));
  }
  std::unique_ptr<RpcReference> Own(nb::object value) const {
    CheckProcess(made_);
    return std::make_unique<RpcReference>(node_->agent->Own(
        std::make_shared<Untyped>(std::make_shared<const PythonValue>(std::move(value), hooks_))));
  }
  std::unique_ptr<RpcCall> Fetch(const RpcReference& reference, double timeout_s) const {
    CheckProcess(made_);
    return std::make_unique<RpcCall>(
        FetchUntyped(*node_->agent, reference.get(), {.timeout = absl::Seconds(timeout_s)}), hooks_);
  }
  std::unique_ptr<RpcCall> Local(const RpcReference& reference) const {
    CheckProcess(made_);
    return std::make_unique<RpcCall>(LocalUntyped(reference.get()), hooks_);
  }

  void Shutdown(double timeout_s) const {
    CheckProcess(made_);
    RaiseIfError(OnHelperThread(
        [node = node_, timeout_s] { return node->agent->Shutdown(absl::Seconds(timeout_s)); }));
  }
  // Returns the text of the error if functions still run.
  std::string ShutdownNow() {
    if (ForkGeneration() != made_) return "";
    absl::Status status;
    {
      GilReleased release;
      status = node_->agent->ShutdownNow();
    }
    functions_run_ = !status.ok();
    return std::string(status.message());
  }

 private:
  const uint64_t made_ = ForkGeneration();
  RpcHooks* const hooks_;
  std::shared_ptr<RpcNode> node_;
  bool functions_run_ = false;  // after ShutdownNow
};

std::unique_ptr<PyRpcAgent> StartAgent(const RpcNodeOptions& options,
                                       const std::vector<ServedFunction>& served, nb::object serve,
                                       nb::object serve_batch, nb::object encode) {
  auto* const hooks =
      new RpcHooks{std::move(serve), std::move(serve_batch), std::move(encode), {}, BufferPool()};
  auto names = std::make_unique<rpc::remote::UntypedFunctions>();
  Functions functions;
  for (size_t number = 0; number < served.size(); ++number) {
    const ServedFunction& each = served[number];
    const auto declared = names->Get(each.name);
    if (each.batched) {
      functions.AddBatched(
          declared,
          [hooks, number](std::vector<std::tuple<Untyped>> calls) {
            return ServeBatch(hooks, static_cast<int>(number), std::move(calls));
          },
          BatchOptions{.max_batch = static_cast<size_t>(each.max_batch),
                       .max_delay = absl::Seconds(each.max_delay_s)});
    } else {
      functions.Add(declared,
                    [hooks, number](const Context& context, const Untyped& argument) {
                      return Serve(hooks, static_cast<int>(number), context, argument);
                    },
                    {.exclusive = each.exclusive});
    }
  }
  AddUntypedValues(&functions);
  // Shared, because a helper thread that is interrupted goes on with it.
  auto made = std::make_shared<std::pair<std::unique_ptr<rpc::remote::UntypedFunctions>, Functions>>(
      std::move(names), std::move(functions));
  return std::make_unique<PyRpcAgent>(ValueOrRaise(OnHelperThread([options, made] {
                                        return RpcNode::Start(options, std::move(made->first),
                                                              std::move(made->second));
                                      })),
                                      hooks);
}

// Returns the job of this process: (launched, store, member, rank, world size, main role, run id, epoch).
nb::tuple JobOfProcess() {
  if (!cluster::Environment::IsLaunched()) return nb::make_tuple(false, "", "", 0, 0, false, "", 0);
  const cluster::Environment env = ValueOrRaise(cluster::Environment::FromEnv());
  return nb::make_tuple(true, env.store, env.member(), env.rank, env.world_size, env.worker, env.run_id,
                        env.epoch);
}

}  // namespace

void BindRpc(nb::module_& module) {
  nb::class_<RpcContext>(module, "RpcContext")
      .def_prop_ro("caller", &RpcContext::caller)
      .def_prop_ro("seconds_left", &RpcContext::seconds_left)
      .def("cancelled", &RpcContext::cancelled);
  nb::class_<RpcReference>(module, "RpcReference")
      .def_prop_ro("owner", [](const RpcReference& self) { return self.get().owner(); })
      .def_prop_ro("is_owner", [](const RpcReference& self) { return self.get().is_owner(); });
  nb::class_<RpcCall>(module, "RpcCall")
      .def("done", &RpcCall::done)
      .def("wait", &RpcCall::Wait)
      .def("outcome", &RpcCall::Outcome)
      .def("when_finished", &RpcCall::WhenFinished)
      .def("cancel", &RpcCall::Cancel);
  nb::class_<PyRpcAgent>(module, "RpcAgent")
      .def_prop_ro("name", &PyRpcAgent::name)
      .def_prop_ro("address", &PyRpcAgent::address)
      .def("workers", &PyRpcAgent::Workers)
      .def("transport_to", &PyRpcAgent::TransportTo)
      .def("start", &PyRpcAgent::Start)
      .def("remote", &PyRpcAgent::Remote)
      .def("own", &PyRpcAgent::Own)
      .def("fetch", &PyRpcAgent::Fetch)
      .def("local", &PyRpcAgent::Local)
      .def("shutdown", &PyRpcAgent::Shutdown)
      .def("shutdown_now", &PyRpcAgent::ShutdownNow);
  module.def("rpc_job", &JobOfProcess);
  module.def("start_rpc",
             [](const std::string& name, const std::string& store,
                const std::vector<std::pair<std::string, std::string>>& peers, const std::string& prefix,
                const std::string& listen, const std::string& transport, int threads, double call_timeout_s,
                double start_timeout_s, int rank, int world_size, const std::vector<std::string>& wait_for,
                const std::string& run_id, int64_t epoch, const std::string& member, nb::list functions,
                nb::object serve, nb::object serve_batch, nb::object encode) {
               std::vector<ServedFunction> served;
               for (nb::handle item : functions) {
                 const auto each = nb::borrow<nb::tuple>(item);
                 served.push_back({.name = nb::cast<std::string>(each[0]),
                                   .batched = nb::cast<bool>(each[1]),
                                   .max_batch = nb::cast<int>(each[2]),
                                   .max_delay_s = nb::cast<double>(each[3]),
                                   .exclusive = nb::cast<std::string>(each[4])});
               }
               return StartAgent({.name = name,
                                  .store = store,
                                  .peers = peers,
                                  .prefix = prefix,
                                  .listen = listen,
                                  .transport = transport,
                                  .threads = threads,
                                  .call_timeout = absl::Seconds(call_timeout_s),
                                  .start_timeout = absl::Seconds(start_timeout_s),
                                  .rank = rank,
                                  .world_size = world_size,
                                  .wait_for = wait_for,
                                  .caller = {.run_id = run_id, .epoch = epoch, .member = member}},
                                 served, std::move(serve), std::move(serve_batch), std::move(encode));
             });
}

}  // namespace tandem::python
