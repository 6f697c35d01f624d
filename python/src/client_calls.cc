// SPDX-License-Identifier: Apache-2.0
#include "python/src/py_client.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "nanobind/ndarray.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"
#include "python/src/client_parts.h"
#include "python/src/errors.h"

namespace nb = nanobind;

namespace tandem::python {
// Receives a call's responses in the thread that waits for it (ps::Client::PrepareInlinePoll), which saves a
// hand-over between threads. Made before the call starts; keeps the promise of PrepareInlinePoll if the call
// is not waited for.
class InlineWait {
 public:
  // `on_gpus`: the call waits for a GPU too. Then nothing is received here: meanwhile responses of other
  // calls would wait for this thread.
  InlineWait(ps::Client* client, bool on_gpus) : client_(on_gpus ? nullptr : client) {
    if (client_ != nullptr) client_->PrepareInlinePoll();
  }
  explicit InlineWait(ps::Client* client) : InlineWait(client, false) {}
  InlineWait(const InlineWait&) = delete;
  ~InlineWait() {
    if (client_ != nullptr) client_->InlinePoll([] { return true; });
  }
  // Receives until the call has ended, at most 100 ms. Called once, after the start, without the GIL.
  void Poll(const Call& call) {
    if (client_ == nullptr) return;
    Clock* const clock = Clock::Real();
    const absl::Time end = clock->Now() + absl::Milliseconds(100);
    std::exchange(client_, nullptr)->InlinePoll([&] { return call.finished() || clock->Now() >= end; });
  }

 private:
  ps::Client* client_;
};

namespace {

// Blocks until the call has ended. Requires the GIL.
void WaitFor(const Call& call) {
  if (!call.finished()) WaitInSlices(-1, [&](double seconds) { return call.WaitFor(seconds); });
}

ps::PushOptions OptionsOfPush(float learning_rate_factor, float batch_share) {
  return {.learning_rate_factor = learning_rate_factor, .batch_share = batch_share};
}

// Returns whether an array of a pull's or push's parts is on a GPU.
template <typename Part>
bool AnyOnGpu(const std::vector<Part>& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [](const Part& part) { return part.device != Device::Cpu(); });
}

// Ends a call that has no versions to return.
void Finish(Call* call, absl::Status status) {
  call->Finish(status.ok() ? absl::StatusOr<ps::PullVersions>(ps::PullVersions()) : std::move(status));
}
}  // namespace

std::shared_ptr<Call> PyClient::StartPull(uint64_t step, bool read_only, nb::list parts, nb::object keep) {
  ConnectionInUse connection = Use();
  return StartPull(&connection, step, read_only, ParsePullParts(parts), std::move(keep));
}

nb::list PyClient::Pull(uint64_t step, bool read_only, nb::list parts, nb::object keep) {
  ConnectionInUse connection = Use();
  std::vector<ps::PullPart> parsed = ParsePullParts(parts);
  InlineWait wait(connection.client(), AnyOnGpu(parsed));
  const std::shared_ptr<Call> call =
      StartPull(&connection, step, read_only, std::move(parsed), std::move(keep), &wait);
  WaitFor(*call);
  return ToPython(ValueOrRaise(call->result()));
}

nb::object PyClient::PullRows(uint64_t step, bool read_only, const std::string& table, uint32_t dim,
                              nb::handle ids, nb::handle out) {
  nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> id_array;
  nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> rows;
  if (!nb::try_cast(ids, id_array, /*convert=*/false) || !nb::try_cast(out, rows, /*convert=*/false) ||
      rows.shape(0) != id_array.shape(0) || rows.shape(1) != dim) {
    return nb::none();
  }
  int64_t signs = 0;
  for (size_t i = 0; i < id_array.size(); ++i) signs |= id_array.data()[i];
  if (signs < 0) return nb::none();
  ConnectionInUse connection = Use();
  std::vector<ps::PullPart> parts;
  parts.push_back({.table = table,
                   .ids = {reinterpret_cast<const uint64_t*>(id_array.data()), id_array.size()},
                   .rows = rows.data(),
                   .repeats = true});
  const uint64_t number = NextPull();
  InlineWait wait(connection.client());
  const std::shared_ptr<Call> call =
      StartPull(&connection, step, read_only, std::move(parts), nb::make_tuple(ids, out), &wait);
  WaitFor(*call);
  nb::tuple version(nb::cast(ValueOrRaise(call->result()).front()));
  SetPulled(table, number, version);
  return version;
}

void PyClient::SetPulled(const std::string& table, uint64_t number, nb::tuple version) {
  const auto [at, is_new] = pulled_.try_emplace(table, number, version);
  if (is_new || at->second.first >= number) return;
  at->second.first = number;
  std::swap(at->second.second, version);  // the destructor of the old one may run Python code
}

nb::tuple PyClient::Pulled(const std::string& table) const {
  const auto at = pulled_.find(table);
  return at == pulled_.end() ? nb::tuple() : at->second.second;
}

std::shared_ptr<Call> PyClient::StartPush(uint64_t step, nb::list parts, float learning_rate_factor,
                                          float batch_share) {
  ConnectionInUse connection = UseToPush();
  PushParts parsed = ParsePushParts(parts);
  StartedPush push =
      StartPush(&connection, step, std::move(parsed.parts), OptionsOfPush(learning_rate_factor, batch_share));
  if (!push.started) Raise(push.call->result().status());
  return push.call;
}

void PyClient::Push(uint64_t step, nb::list parts, float learning_rate_factor, float batch_share,
                    nb::callable started) {
  ConnectionInUse connection = UseToPush();
  PushParts parsed = ParsePushParts(parts);
  InlineWait wait(connection.client(), AnyOnGpu(parsed.parts));
  const StartedPush push = StartPush(&connection, step, std::move(parsed.parts),
                                     OptionsOfPush(learning_rate_factor, batch_share), &wait);
  if (push.started) started();
  WaitFor(*push.call);
  RaiseIfError(push.call->result().status());
}

std::shared_ptr<Call> PyClient::StartLookup(uint64_t step, bool read_only,
                                            std::shared_ptr<BatchLookup> lookup) {
  ConnectionInUse connection = Use();
  return StartLookup(&connection, step, read_only, std::move(lookup));
}

void PyClient::PullLookup(uint64_t step, bool read_only, std::shared_ptr<BatchLookup> lookup) {
  ConnectionInUse connection = Use();
  InlineWait wait(connection.client());
  const std::shared_ptr<Call> call = StartLookup(&connection, step, read_only, std::move(lookup), &wait);
  WaitFor(*call);
  RaiseIfError(call->result().status());
}

std::shared_ptr<Call> PyClient::StartGradients(uint64_t step, const std::vector<PushSource>& sources,
                                               float learning_rate_factor, float batch_share) {
  ConnectionInUse connection = UseToPush();
  GradientPush gradients;
  {
    GilReleased release;
    gradients = TakePush(sources);
  }
  StartedPush push = StartPush(&connection, step, std::move(gradients.parts),
                               OptionsOfPush(learning_rate_factor, batch_share));
  if (!push.started) Raise(push.call->result().status());
  return push.call;
}

std::shared_ptr<Call> PyClient::StartPull(ConnectionInUse* connection, uint64_t step, bool read_only,
                                          std::vector<ps::PullPart> parts, nb::object keep,
                                          InlineWait* wait) {
  std::vector<nb::object> kept;
  kept.push_back(std::move(keep));
  auto call = std::make_shared<Call>(std::move(kept), released_);
  {
    GilReleased release;
    connection->client()->PullAsync(
        step, read_only, std::move(parts),
        [under_way = connection->TakeCall(), call](absl::StatusOr<ps::PullVersions> versions) {
          call->Finish(std::move(versions));
        });
    if (wait != nullptr) wait->Poll(*call);
  }
  RaiseIfInterrupted();
  return call;
}

PyClient::StartedPush PyClient::StartPush(ConnectionInUse* connection, uint64_t step,
                                          std::vector<ps::PushPart> parts, const ps::PushOptions& options,
                                          InlineWait* wait) {
  auto call = std::make_shared<Call>(std::vector<nb::object>(), released_);
  bool started;
  {
    GilReleased release;
    started =
        connection->client()->StartPush(step, std::move(parts), options,
                                        [under_way = connection->TakeCall(), call](absl::Status status) {
                                          Finish(call.get(), std::move(status));
                                        }) != nullptr;
    if (wait != nullptr) wait->Poll(*call);
  }
  if (!started) RaiseIfInterrupted();
  return {call, started};
}

std::shared_ptr<Call> PyClient::StartLookup(ConnectionInUse* connection, uint64_t step, bool read_only,
                                            std::shared_ptr<BatchLookup> lookup, InlineWait* wait) {
  auto call = std::make_shared<Call>(std::vector<nb::object>(), released_);
  {
    GilReleased release;
    if (!read_only) {
      lookup->SetCounted(
          [&](const std::string& table) { return connection->client()->CountsOccurrences(table); });
    }
    std::vector<ps::PullPart> parts = lookup->PullParts();
    connection->client()->PullAsync(step, read_only, std::move(parts),
                                    [under_way = connection->TakeCall(), call,
                                     lookup = std::move(lookup)](absl::StatusOr<ps::PullVersions> versions) {
                                      if (versions.ok()) lookup->SetVersions(*std::move(versions));
                                      Finish(call.get(), versions.status());
                                    });
    if (wait != nullptr) wait->Poll(*call);
  }
  RaiseIfInterrupted();
  return call;
}

}  // namespace tandem::python
