// SPDX-License-Identifier: Apache-2.0
#include "python/src/replay_sharded.h"

#include <algorithm>
#include <optional>
#include <stop_token>
#include <utility>

#include "base/clock.h"
#include "nanobind/ndarray.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/unique_ptr.h"
#include "nanobind/stl/vector.h"
#include "python/src/engine_server.h"
#include "python/src/helper_thread.h"
#include "python/src/stoppable_channel.h"
#include "replay/client/may_repeat.h"

namespace nb = nanobind;

namespace tandem::python {
namespace {

nb::tuple ToPython(replay::ShardedBatch sample) {
  auto held = std::make_unique<std::vector<uint32_t>>(std::move(sample.shards));
  const std::vector<uint32_t>* const shards = held.get();
  const nb::capsule owner(
      held.get(), [](void* pointer) noexcept { delete static_cast<std::vector<uint32_t>*>(pointer); });
  (void)held.release();
  return nb::make_tuple(BatchToPython(std::move(sample.batch)),
                        nb::cast(nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>>(
                            const_cast<uint32_t*>(shards->data()), {shards->size()}, owner)));
}

template <typename T>
std::vector<T> ToVector(nb::handle object) {
  const auto array = nb::cast<nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(object);
  return {array.data(), array.data() + array.size()};
}

}  // namespace

std::unique_ptr<PyShardedSampler> PyShardedSampler::Open(const std::vector<PyReplayClient*>& clients,
                                                         const replay::ShardedSamplerOptions& options,
                                                         double timeout_s) {
  auto state = std::make_unique<State>();
  std::vector<replay::Replay*> shards;
  for (const PyReplayClient* const client : clients) {
    const std::shared_ptr<ReplayConnection>& connection = state->connections.emplace_back(client->Use());
    // The sampler calls the servers on threads of its own, whose calls have no other token.
    auto channel = std::make_shared<StoppableChannel>(connection->channel,
                                                      [calls = &state->calls] { return calls->token(); });
    shards.push_back(state->replays
                         .emplace_back(std::make_unique<replay::RemoteReplay>(std::move(channel),
                                                                              connection->replay->options()))
                         .get());
  }
  std::shared_ptr<State> shared = LeakAfterFork(std::move(state));
  auto sampler = std::unique_ptr<PyShardedSampler>(new PyShardedSampler(shared));
  RaiseIfError(CallUntil(clients[0]->gate(), timeout_s, [shared, shards, options](absl::Time) {
    const std::stop_callback end(StopOfThisThread(), [&] { shared->calls.StopCalls(); });
    absl::StatusOr<std::unique_ptr<replay::ShardedSampler>> made =
        replay::ShardedSampler::Create(shards, options);
    if (made.ok()) shared->sampler = *std::move(made);
    return made.status();
  }));
  return sampler;
}

std::shared_ptr<PyShardedSampler::State> PyShardedSampler::Use() const {
  gate_->Check();
  return state_;
}

nb::tuple PyShardedSampler::Next(double timeout_s) {
  const TakenTurn turn = TakeTurn(*gate_, sampling_, "sampler", timeout_s);
  const std::shared_ptr<State> state = Use();
  std::optional<absl::StatusOr<replay::ShardedBatch>> batch;
  WaitInSlices(timeout_s, [&](double seconds) {
    if (gate_->closed()) {
      batch.emplace(gate_->Closed());
      return true;
    }
    batch.emplace(state->sampler->Next(MonotonicNow() + absl::Seconds(seconds)));
    return batch->ok() || !replay::MayRepeat(batch->status());
  });
  return ToPython(ValueOrRaise(*std::move(batch)));
}

nb::tuple PyShardedSampler::Sample(uint32_t batch, double timeout_s) {
  TakenTurn turn = TakeTurn(*gate_, sampling_, "client", timeout_s);
  return ToPython(ValueOrRaise(CallUntil(gate_, timeout_s,
                                         [state = Use(), turn = std::move(turn), batch](absl::Time deadline) {
                                           const std::stop_token stop = StopOfThisThread();
                                           const std::stop_callback end(stop,
                                                                        [&] { state->calls.StopCalls(); });
                                           return state->sampler->Sample(batch, deadline, stop);
                                         },
                                         {.whole = true})));
}

uint64_t PyShardedSampler::UpdatePriorities(nb::object keys, nb::object shards, nb::object priorities,
                                            double timeout_s) {
  replay::ShardedBatch batch;
  batch.batch.keys = ToVector<uint64_t>(keys);
  batch.shards = ToVector<uint32_t>(shards);
  std::vector<double> values = ToVector<double>(priorities);
  TakenTurn turn = TakeTurn(*gate_, updating_, "client", timeout_s);
  return ValueOrRaise(CallUntil(gate_, timeout_s,
                                [state = Use(), turn = std::move(turn), batch = std::move(batch),
                                 values = std::move(values)](absl::Time) {
                                  const std::stop_callback end(StopOfThisThread(),
                                                               [&] { state->calls.StopCalls(); });
                                  return state->sampler->UpdatePriorities(batch, values);
                                }));
}

void PyShardedSampler::Close() {
  gate_->Close();
  std::shared_ptr<State> state = std::exchange(state_, nullptr);
  if (state == nullptr || gate_->forked()) return;
  GilReleased release;
  state->calls.Close();
  state.reset();
}

void BindShardedReplay(nb::module_& module) {
  nb::class_<PyShardedSampler>(module, "ShardedReplaySampler")
      .def("next", &PyShardedSampler::Next)
      .def("sample", &PyShardedSampler::Sample)
      .def("update_priorities", &PyShardedSampler::UpdatePriorities)
      .def("close", &PyShardedSampler::Close);
  module.def("open_sharded_sampler", [](const std::vector<PyReplayClient*>& clients, const std::string& name,
                                        const std::string& table, uint32_t batch, uint32_t prefetch,
                                        size_t prefetch_bytes, uint64_t seed, double timeout_s) {
    return PyShardedSampler::Open(clients,
                                  {.table = table,
                                   .name = name,
                                   .seed = seed,
                                   .batch = batch,
                                   .prefetch = prefetch,
                                   .prefetch_bytes = prefetch_bytes},
                                  timeout_s);
  });
  module.def("count_servers_in_job", [](const std::string& role, double timeout_s) {
    return ValueOrRaise(
        OnHelperThread([role, timeout_s] { return CountInJob(role, absl::Seconds(timeout_s)); }));
  });
}

}  // namespace tandem::python
