// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_REPLAY_SHARDED_H_
#define TANDEM_PYTHON_SRC_REPLAY_SHARDED_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nanobind/nanobind.h"
#include "python/src/engine_calls.h"
#include "python/src/replay_client.h"
#include "replay/client/remote_replay.h"
#include "replay/client/sharded_sampler.h"

namespace tandem::python {

// Samples a table that is divided among several servers (replay::ShardedSampler). Thread-safe: calls take
// turns. Methods follow the rules of replay_client.h.
class PyShardedSampler {
 public:
  // Connects to the servers of `clients`, of which there is at least one; the close of the first one ends
  // this call. `batch` 0: Next is not called, and nothing is drawn ahead.
  static std::unique_ptr<PyShardedSampler> Open(const std::vector<PyReplayClient*>& clients,
                                                const replay::ShardedSamplerOptions& options,
                                                double timeout_s);
  ~PyShardedSampler() { Close(); }

  // Return a batch (BatchToPython) and the shard of each item, uint32. What Ctrl-C or the time limit keeps
  // from Sample is given to the next one of as many items.
  nanobind::tuple Next(double timeout_s);
  nanobind::tuple Sample(uint32_t batch, double timeout_s);
  // The arrays are uint64, uint32 and float64, one-dimensional and contiguous.
  uint64_t UpdatePriorities(nanobind::object keys, nanobind::object shards, nanobind::object priorities,
                            double timeout_s);
  // Ends the calls of other threads, and all calls to the servers.
  void Close();

 private:
  // The sampler with its connections. Calls that were given up may use it longer than its owner.
  struct State {
    std::vector<std::shared_ptr<ReplayConnection>> connections;
    CallStopper calls;  // to the servers
    std::vector<std::unique_ptr<replay::RemoteReplay>> replays;
    std::unique_ptr<replay::ShardedSampler> sampler;  // destroyed first
  };

  explicit PyShardedSampler(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> Use() const;

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>("sampler");
  const std::shared_ptr<Turn> sampling_ = std::make_shared<Turn>(), updating_ = std::make_shared<Turn>();
  std::shared_ptr<State> state_;  // null: closed
};

void BindShardedReplay(nanobind::module_& module);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_REPLAY_SHARDED_H_
