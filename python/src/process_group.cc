// SPDX-License-Identifier: Apache-2.0
#include "python/src/process_group.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/ipc/host_identity.h"
#include "base/long_wait.h"
#include "base/timed_wait.h"
#include "collectives/backends/shm/shm_backend.h"
#include "collectives/connect/backend_choice.h"
#include "collectives/process_group.h"
#include "nanobind/stl/optional.h"
#include "nanobind/stl/shared_ptr.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"
#include "python/src/call.h"
#include "python/src/errors.h"
#include "python/src/group_connection.h"
#include "python/src/group_work.h"
#include "python/src/process.h"

namespace nb = nanobind;

namespace tandem::python {
namespace {

using collectives::ReduceOp;
using collectives::Work;

// Runs `function` in a thread of its own and waits for it, so that Ctrl-C ends the wait. `function` owns what
// it uses: after Ctrl-C it may run on. `interrupt` is then called. Requires the GIL.
absl::Status RunInterruptibly(std::function<absl::Status()> function,
                              const std::function<void()>& interrupt) {
  struct Result {
    TimedNotification finished;
    absl::Status status;
  };
  auto result = std::make_shared<Result>();
  std::thread([result, function = std::move(function)]() mutable {
    result->status = function();
    function = nullptr;
    result->finished.Notify();
  }).detach();
  try {
    WaitInSlices(-1, [&](double seconds) { return result->finished.WaitFor(absl::Seconds(seconds)); });
  } catch (...) {
    interrupt();
    throw;
  }
  return result->status;
}

// Reads [address, count, address, count, ...].
template <typename View>
std::vector<View> ParseViews(nb::list list, DType dtype) {
  std::vector<View> views;
  const size_t size = nb::len(list);
  views.reserve(size / 2);
  for (size_t i = 0; i + 1 < size; i += 2) {
    views.emplace_back(reinterpret_cast<void*>(nb::cast<uint64_t>(list[i])), nb::cast<size_t>(list[i + 1]),
                       dtype);
  }
  return views;
}

TensorView View(uint64_t address, size_t count, int dtype) {
  return {reinterpret_cast<void*>(address), count, static_cast<DType>(dtype)};
}

class PyProcessGroup {
 public:
  static std::shared_ptr<PyProcessGroup> Connect(const std::string& address, const std::string& name,
                                                 int rank, std::vector<int> global_ranks, double timeout_s,
                                                 const std::string& transport) {
    auto connection = std::make_shared<GroupConnection>();
    auto cancelled = std::make_shared<std::atomic<bool>>(false);
    collectives::ProcessGroupOptions options;
    options.backend = transport;
    options.name = name;
    options.rank = rank;
    options.world_size = static_cast<int>(global_ranks.size());
    options.global_ranks = std::move(global_ranks);
    options.timeout = absl::Seconds(timeout_s);
    RaiseIfError(RunInterruptibly(
        [=] {
          absl::StatusOr<GroupConnection> made = ConnectGroup(address, options, cancelled);
          if (made.ok()) *connection = *std::move(made);
          return made.status();
        },
        [&] { cancelled->store(true); }));
    return std::make_shared<PyProcessGroup>(std::make_unique<GroupConnection>(std::move(*connection)));
  }

  explicit PyProcessGroup(std::unique_ptr<GroupConnection> connection)
      : connection_(LeakAfterFork(std::move(connection))),
        // Waits of other backends do not call the long-wait hook.
        interruptible_in_thread_(backend() == collectives::ShmBackendFactory().name ||
                                 connection_->group->world_size() == 1) {}
  ~PyProcessGroup() {
    if (connection_ == nullptr) return;
    GilReleased release;
    connection_.reset();
  }

  std::string backend() const { return connection_ == nullptr ? "" : connection_->group->backend(); }
  bool closed() const { return connection_ == nullptr; }
  // Returns the number of operations that are under way.
  int running() const { return collectives_->load() + messages_->load(); }

  void Abort(const std::string& reason) {
    if (connection_ == nullptr || ForkGeneration() != made_) return;
    const std::shared_ptr<GroupConnection> connection = connection_;
    GilReleased release;
    connection->group->Abort(reason);
  }
  // Leaves the group. Waits for collectives that run, each of which ends by its timeout, and for messages at
  // most 2 s.
  void Close() {
    if (connection_ == nullptr) return;
    if (ForkGeneration() == made_) {
      // Destroy itself cannot be interrupted.
      WaitInSlices(-1, [&](double seconds) {
        if (collectives_->load() == 0 || !connection_->group->is_initialized()) return true;
        absl::SleepFor(absl::Seconds(std::min(seconds, 0.001)));
        return collectives_->load() == 0;
      });
    }
    std::shared_ptr<GroupConnection> connection = std::move(connection_);
    {
      GilReleased release;
      connection.reset();
    }
    if (ForkGeneration() == made_) released_->Clear();
  }
  // Raises the first error that broke the group.
  void Check() { RaiseIfError(Use()->error()); }

  // Each of the following begins an operation. With `async` it returns the operation; otherwise it blocks
  // until the operation is completed, and returns None.
  using OptionalWork = std::shared_ptr<GroupWork>;

  OptionalWork AllReduce(uint64_t in, size_t count, int dtype, int op, double factor, bool async,
                         double timeout_s, nb::object keep) {
    const TensorView view = View(in, count, dtype);
    return Run(async, timeout_s, std::move(keep),
               [=](collectives::ProcessGroup* group, bool now, absl::Duration timeout) {
                 return group->AllReduce(
                     view,
                     {.op = static_cast<ReduceOp>(op), .factor = factor, .async = !now, .timeout = timeout});
               });
  }
  OptionalWork AllReduceCoalesced(nb::list tensors, int dtype, int op, double factor, bool async,
                                  double timeout_s, nb::object keep) {
    return Run(async, timeout_s, std::move(keep),
               [=, views = ParseViews<TensorView>(tensors, static_cast<DType>(dtype))](
                   collectives::ProcessGroup* group, bool now, absl::Duration timeout) {
                 return group->AllReduceCoalesced(
                     views,
                     {.op = static_cast<ReduceOp>(op), .factor = factor, .async = !now, .timeout = timeout});
               });
  }
  OptionalWork Reduce(uint64_t address, size_t count, int dtype, int root, int op, double factor, bool async,
                      double timeout_s, nb::object keep) {
    const TensorView view = View(address, count, dtype);
    return Run(async, timeout_s, std::move(keep),
               [=](collectives::ProcessGroup* group, bool now, absl::Duration timeout) {
                 return group->Reduce(view, {.root = root,
                                             .op = static_cast<ReduceOp>(op),
                                             .factor = factor,
                                             .async = !now,
                                             .timeout = timeout});
               });
  }
  OptionalWork Broadcast(uint64_t address, size_t count, int dtype, int root, bool async, double timeout_s,
                         nb::object keep) {
    const TensorView view = View(address, count, dtype);
    return Run(async, timeout_s, std::move(keep),
               [=](collectives::ProcessGroup* group, bool now, absl::Duration timeout) {
                 return group->Broadcast(view, {.root = root, .async = !now, .timeout = timeout});
               });
  }
  OptionalWork AllGather(uint64_t in, size_t count, nb::list outs, int dtype, bool async, double timeout_s,
                         nb::object keep) {
    const TensorView view = View(in, count, dtype);
    return Run(async, timeout_s, std::move(keep),
               [=, views = ParseViews<TensorView>(outs, static_cast<DType>(dtype))](
                   collectives::ProcessGroup* group, bool now, absl::Duration timeout) {
                 return group->AllGather(view, views, {.async = !now, .timeout = timeout});
               });
  }
  OptionalWork AllGatherSingle(uint64_t in, size_t in_count, uint64_t out, size_t out_count, int dtype,
                               bool async, double timeout_s, nb::object keep) {
    const TensorView from = View(in, in_count, dtype), to = View(out, out_count, dtype);
    return Run(async, timeout_s, std::move(keep),
               [=](collectives::ProcessGroup* group, bool now, absl::Duration timeout) {
                 return group->AllGather(from, to, {.async = !now, .timeout = timeout});
               });
  }
  OptionalWork Gather(uint64_t in, size_t count, nb::list outs, int dtype, int root, bool async,
                      double timeout_s, nb::object keep) {
    const TensorView view = View(in, count, dtype);
    return Run(async, timeout_s, std::move(keep),
               [=, views = ParseViews<TensorView>(outs, static_cast<DType>(dtype))](
                   collectives::ProcessGroup* group, bool now, absl::Duration timeout) {
                 return group->Gather(view, views, {.root = root, .async = !now, .timeout = timeout});
               });
  }
  OptionalWork Scatter(nb::list ins, uint64_t out, size_t count, int dtype, int root, bool async,
                       double timeout_s, nb::object keep) {
    const TensorView view = View(out, count, dtype);
    return Run(async, timeout_s, std::move(keep),
               [=, views = ParseViews<ConstTensorView>(ins, static_cast<DType>(dtype))](
                   collectives::ProcessGroup* group, bool now, absl::Duration timeout) {
                 return group->Scatter(views, view, {.root = root, .async = !now, .timeout = timeout});
               });
  }
  OptionalWork ReduceScatter(nb::list ins, uint64_t out, size_t count, int dtype, int op, double factor,
                             bool async, double timeout_s, nb::object keep) {
    const TensorView view = View(out, count, dtype);
    return Run(async, timeout_s, std::move(keep),
               [=, views = ParseViews<ConstTensorView>(ins, static_cast<DType>(dtype))](
                   collectives::ProcessGroup* group, bool now, absl::Duration timeout) {
                 return group->ReduceScatter(
                     views, view,
                     {.op = static_cast<ReduceOp>(op), .factor = factor, .async = !now, .timeout = timeout});
               });
  }
  OptionalWork ReduceScatterSingle(uint64_t in, size_t in_count, uint64_t out, size_t out_count, int dtype,
                                   int op, double factor, bool async, double timeout_s, nb::object keep) {
    const TensorView from = View(in, in_count, dtype), to = View(out, out_count, dtype);
    return Run(async, timeout_s, std::move(keep),
               [=](collectives::ProcessGroup* group, bool now, absl::Duration timeout) {
                 return group->ReduceScatter(
                     ConstTensorView(from), to,
                     {.op = static_cast<ReduceOp>(op), .factor = factor, .async = !now, .timeout = timeout});
               });
  }
  OptionalWork AllToAll(nb::list ins, nb::list outs, int dtype, bool async, double timeout_s,
                        nb::object keep) {
    return Run(async, timeout_s, std::move(keep),
               [=, from = ParseViews<ConstTensorView>(ins, static_cast<DType>(dtype)),
                to = ParseViews<TensorView>(outs, static_cast<DType>(dtype))](
                   collectives::ProcessGroup* group, bool now, absl::Duration timeout) {
                 return group->AllToAll(from, to, {.async = !now, .timeout = timeout});
               });
  }
  OptionalWork AllToAllSingle(uint64_t in, uint64_t out, size_t in_count, size_t out_count, int dtype,
                              bool async, double timeout_s, nb::object keep) {
    const TensorView from = View(in, in_count, dtype), to = View(out, out_count, dtype);
    return Run(async, timeout_s, std::move(keep),
               [=](collectives::ProcessGroup* group, bool now, absl::Duration timeout) {
                 return group->AllToAll(ConstTensorView(from), to, {.async = !now, .timeout = timeout});
               });
  }
  OptionalWork Barrier(bool async, double timeout_s) {
    return Run(async, timeout_s, nb::none(),
               [](collectives::ProcessGroup* group, bool now, absl::Duration timeout) {
                 return group->Barrier({.async = !now, .timeout = timeout});
               });
  }
  // Messages never block the caller.
  OptionalWork Send(uint64_t address, size_t count, int dtype, int peer, uint32_t tag, double timeout_s,
                    nb::object keep) {
    const TensorView view = View(address, count, dtype);
    return Start(messages_, std::move(keep), [=](collectives::ProcessGroup* group) {
      return group->Isend(view, peer, {.tag = tag, .timeout = absl::Seconds(timeout_s)});
    });
  }
  // `peer` -1: any rank.
  OptionalWork Receive(uint64_t address, size_t count, int dtype, int peer, uint32_t tag, double timeout_s,
                       nb::object keep) {
    const TensorView view = View(address, count, dtype);
    return Start(messages_, std::move(keep), [=](collectives::ProcessGroup* group) {
      return group->Irecv(view, peer, {.tag = tag, .timeout = absl::Seconds(timeout_s)});
    });
  }
  void MonitoredBarrier(double timeout_s) {
    Use();
    RaiseIfError(RunInterruptibly(
        [connection = connection_, timeout_s] {
          return connection->group->MonitoredBarrier(absl::Seconds(timeout_s));
        },
        [] {}));
  }

 private:
  // Returns the group. Raises if it was left, or if the process was forked.
  collectives::ProcessGroup* Use() {
    if (connection_ == nullptr) Raise(absl::AbortedError("this process group was destroyed"));
    if (ForkGeneration() != made_) {
      Raise(absl::FailedPreconditionError(
          "this process was forked after the process group was made, and threads do not "
          "survive a fork; start the process by multiprocessing's spawn or forkserver, and "
          "make a process group in it"));
    }
    released_->Clear();
    return connection_->group.get();
  }

  // `running` counts the operation while it runs.
  template <typename Begin>
  OptionalWork Start(const std::shared_ptr<std::atomic<int>>& running, nb::object keep, const Begin& begin) {
    Use();
    const std::shared_ptr<GroupConnection> connection = connection_;  // close() may be called meanwhile
    auto work = std::make_shared<GroupWork>(std::move(keep), released_);
    {
      GilReleased release;
      GroupWork::Begin(work, begin(connection->group.get()), running);
    }
    if (work->done()) RaiseIfError(work->status());  // refused, for example
    return work;
  }

  template <typename Begin>
  OptionalWork Run(bool async, double timeout_s, nb::object keep, const Begin& begin) {
    const absl::Duration timeout = absl::Seconds(timeout_s);
    if (async) {
      return Start(collectives_, std::move(keep),
                   [&](collectives::ProcessGroup* group) { return begin(group, false, timeout); });
    }
    if (interruptible_in_thread_ && collectives_->load(std::memory_order_relaxed) == 0) {
      RunInThisThread([&](collectives::ProcessGroup* group) { return begin(group, true, timeout); });
      return nullptr;
    }
    const OptionalWork work = Start(collectives_, std::move(keep), [&](collectives::ProcessGroup* group) {
      return begin(group, false, timeout);
    });
    try {
      WaitInSlices(-1, [&](double seconds) { return work->WaitFor(seconds); });
    } catch (...) {
      Abort(kInterrupted);
      throw;
    }
    RaiseIfError(work->status());
    return nullptr;
  }

  // Runs an operation without a hand-over between threads. A signal whose handler raises (Ctrl-C) aborts the
  // group, which ends the operation: no other rank can be served any more.
  template <typename Begin>
  void RunInThisThread(const Begin& begin) {
    collectives::ProcessGroup* const group = Use();
    const std::shared_ptr<GroupConnection> connection = connection_;
    std::optional<nb::python_error> raised;
    const auto check_signals = [&] {
      if (raised.has_value()) return;
      {
        nb::gil_scoped_acquire acquire;
        if (PyErr_CheckSignals() == 0) return;
        raised.emplace();
      }
      group->Abort(kInterrupted);
    };
    absl::Status status;
    {
      GilReleased release;
      const ScopedLongWaitHook hook(check_signals);
      status = begin(group).status();
    }
    if (raised.has_value()) throw nb::python_error(std::move(*raised));
    RaiseIfError(status);
  }

  static constexpr char kInterrupted[] = "the program was interrupted";

  const uint64_t made_ = ForkGeneration();
  std::shared_ptr<GroupConnection> connection_;  // null: closed
  const bool interruptible_in_thread_;
  // The operations that are under way.
  const std::shared_ptr<std::atomic<int>> collectives_ = std::make_shared<std::atomic<int>>(0);
  const std::shared_ptr<std::atomic<int>> messages_ = std::make_shared<std::atomic<int>>(0);
  const std::shared_ptr<ReleasedObjects> released_ = std::make_shared<ReleasedObjects>();
};

// Returns the names that connect() accepts for CPU tensors.
std::vector<std::string> Transports() {
  std::vector<std::string> names = {"auto"};
  for (const collectives::BackendFactory& factory : collectives::BuiltInBackends()) {
    if (factory.device == Device::Kind::kCpu) names.push_back(factory.name);
  }
  return names;
}

// Return {name: number}.
nb::dict DTypes() {
  nb::dict dtypes;
  for (int i = 0; i < kNumDTypes; ++i) dtypes[nb::cast(std::string(Name(static_cast<DType>(i))))] = i;
  return dtypes;
}
nb::dict ReduceOps() {
  nb::dict ops;
  for (int i = 0; i <= static_cast<int>(ReduceOp::kPremulSum); ++i) {
    ops[nb::cast(std::string(collectives::Name(static_cast<ReduceOp>(i))))] = i;
  }
  return ops;
}

}  // namespace

void BindProcessGroup(nb::module_& module) {
  module.def("host_identity", &ipc::HostIdentity);
  module.def("transports", &Transports);
  module.def("dtypes", &DTypes);
  module.def("reduce_ops", &ReduceOps);
  module.def("serve_group_store", [](bool local) {
    absl::StatusOr<std::string> address = absl::UnknownError("");
    {
      GilReleased release;
      address = ServeGroupStore(local);
    }
    return ValueOrRaise(std::move(address));
  });
  nb::class_<GroupWork>(module, "GroupWork")
      .def("done", &GroupWork::done)
      .def("wait",
           [](const GroupWork& work, double timeout_s) {
             if (work.done()) return true;
             RaiseIfError(work.CheckProcess());
             return WaitInSlices(timeout_s, [&](double seconds) { return work.WaitFor(seconds); });
           })
      // Raises the error of a completed operation.
      .def("check", [](const GroupWork& work) { RaiseIfError(work.status()); })
      .def("source_rank", &GroupWork::source_rank)
      .def("when_finished", [](const GroupWork& work, std::shared_ptr<FinishedCalls> queue, uint64_t number) {
        RaiseIfError(work.CheckProcess());
        work.WhenFinished(std::move(queue), number);
      });
  nb::class_<PyProcessGroup>(module, "ProcessGroup")
      .def_static("connect", &PyProcessGroup::Connect)
      .def_prop_ro("backend", &PyProcessGroup::backend)
      .def_prop_ro("closed", &PyProcessGroup::closed)
      .def_prop_ro("running", &PyProcessGroup::running)
      .def("abort", &PyProcessGroup::Abort)
      .def("close", &PyProcessGroup::Close)
      .def("check", &PyProcessGroup::Check)
      .def("all_reduce", &PyProcessGroup::AllReduce)
      .def("all_reduce_coalesced", &PyProcessGroup::AllReduceCoalesced)
      .def("reduce", &PyProcessGroup::Reduce)
      .def("broadcast", &PyProcessGroup::Broadcast)
      .def("all_gather", &PyProcessGroup::AllGather)
      .def("all_gather_single", &PyProcessGroup::AllGatherSingle)
      .def("gather", &PyProcessGroup::Gather)
      .def("scatter", &PyProcessGroup::Scatter)
      .def("reduce_scatter", &PyProcessGroup::ReduceScatter)
      .def("reduce_scatter_single", &PyProcessGroup::ReduceScatterSingle)
      .def("all_to_all", &PyProcessGroup::AllToAll)
      .def("all_to_all_single", &PyProcessGroup::AllToAllSingle)
      .def("barrier", &PyProcessGroup::Barrier)
      .def("send", &PyProcessGroup::Send)
      .def("receive", &PyProcessGroup::Receive)
      .def("monitored_barrier", &PyProcessGroup::MonitoredBarrier);
}

}  // namespace tandem::python
