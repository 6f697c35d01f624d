// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_REPLAY_CLIENT_H_
#define TANDEM_PYTHON_SRC_REPLAY_CLIENT_H_

// Clients of replay servers, their writers and samplers, as Python sees them. Methods require the GIL,
// release it while they wait, and throw the exceptions of errors.h; Ctrl-C ends their waits. Times are in
// seconds.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "nanobind/nanobind.h"
#include "python/src/engine_calls.h"
#include "python/src/engine_server.h"
#include "replay/client/remote_replay.h"
#include "replay/client/sampler.h"
#include "replay/client/writer.h"

namespace tandem::python {

// A connection to a replay server. Destroyed after all writers and samplers that use it.
struct ReplayConnection {
  std::shared_ptr<EngineServer> server;  // null: in another process
  std::shared_ptr<rpc::Channel> channel;
  std::unique_ptr<replay::RemoteReplay> replay;
};

// A writer or sampler with its connection. `object` is destroyed first.
template <typename Object>
struct OnConnection {
  std::shared_ptr<ReplayConnection> connection;
  std::unique_ptr<Object> object;
};

// A window of steps: (first step, steps, how often the first one is repeated in front).
using WindowTuple = std::tuple<uint64_t, uint32_t, uint32_t>;
// A column of an item: (name, the writer's column, window).
using ItemColumnTuple = std::tuple<std::string, std::string, WindowTuple>;

// Thread-safe: calls take turns.
class PyReplayWriter {
 public:
  PyReplayWriter(std::shared_ptr<Gate> gate, std::shared_ptr<OnConnection<replay::Writer>> writer,
                 uint32_t max_pending_items);
  ~PyReplayWriter();

  // Appends `steps` steps: each array has the values of a column, [steps, shape...]. `is_first` and
  // `versions` have an element for each step, or one for all: then the later steps are not the first of an
  // episode. Raises as Writer::Append does; after DeadlineExceeded the steps have been appended.
  void Append(nanobind::list values, size_t steps, const std::vector<bool>& is_first,
              const std::vector<int64_t>& versions, double timeout_s);
  WindowTuple Last(uint32_t steps, uint32_t skip, bool across_episodes);
  WindowTuple Stack(uint32_t steps, uint32_t skip);
  uint64_t EpisodeSteps();
  void CreateItem(const std::string& table, std::optional<double> priority,
                  const std::vector<ItemColumnTuple>& columns, double timeout_s);
  void Hold(const std::string& table, uint64_t ticket, int64_t min_version, double lease_s);
  void Flush(double timeout_s);
  size_t PendingItems();
  uint64_t DroppedItems();
  // Drops what was not delivered. A call under way ends with Cancelled. Returns the tickets that were held,
  // by table.
  std::vector<std::pair<std::string, std::vector<uint64_t>>> Close();
  bool closed() const { return writer_ == nullptr; }

 private:
  TakenTurn Take(double timeout_s = 60);
  replay::Writer& writer() { return *writer_->object; }
  // Delivers what is due, and hands the turn on to that.
  void Deliver(std::shared_ptr<OnConnection<replay::Writer>> writer, TakenTurn turn, double timeout_s);

  const std::shared_ptr<Gate> gate_;
  const uint32_t max_pending_items_;
  const std::shared_ptr<Turn> turn_ = std::make_shared<Turn>();
  std::shared_ptr<OnConnection<replay::Writer>> writer_;  // null: closed
};

// Thread-safe: calls take turns.
class PyReplaySampler {
 public:
  PyReplaySampler(std::shared_ptr<Gate> gate, std::shared_ptr<OnConnection<replay::Sampler>> sampler)
      : gate_(std::move(gate)), sampler_(std::move(sampler)) {}
  ~PyReplaySampler();

  // Returns the next batch (BatchToPython).
  nanobind::tuple Next(double timeout_s);
  // Ends a call of another thread.
  void Close();

 private:
  const std::shared_ptr<Gate> gate_;
  const std::shared_ptr<Turn> turn_ = std::make_shared<Turn>();
  std::atomic<bool> closed_{false};
  std::shared_ptr<OnConnection<replay::Sampler>> sampler_;  // null: closed
};

// Thread-safe.
class PyReplayClient {
 public:
  // `timeout_s` bounds the calls that have no limit of their own.
  PyReplayClient(std::unique_ptr<ReplayConnection> connection, double timeout_s);
  ~PyReplayClient();

  // Ends the calls of this client, its writers and samplers, and refuses later ones.
  void Close();
  bool closed() const { return gate_->closed(); }

  void CreateTable(const std::string& json);
  // Columns are (name, dtype, shape of a step).
  std::unique_ptr<PyReplayWriter> OpenWriter(
      const std::string& name, const std::vector<std::tuple<std::string, int, std::vector<int64_t>>>& columns,
      uint32_t chunk_steps, uint32_t history_steps, uint32_t max_pending_items);
  std::unique_ptr<PyReplaySampler> OpenSampler(const std::string& name, const std::string& table,
                                               uint32_t batch, uint32_t min_batch, uint32_t prefetch,
                                               size_t prefetch_bytes);
  nanobind::tuple Sample(const std::string& table, uint32_t batch, uint32_t min_batch, double timeout_s);
  // The arrays are uint64 and float64, one-dimensional and contiguous.
  uint64_t UpdatePriorities(const std::string& table, nanobind::object keys, nanobind::object priorities);
  // Returns tickets (id, min version, lease).
  std::vector<std::tuple<uint64_t, int64_t, double, uint64_t>> Admit(const std::string& table,
                                                                     const std::string& actor, uint32_t count,
                                                                     double timeout_s);
  uint64_t Renew(const std::string& table, const std::vector<uint64_t>& tickets, bool end);
  void Commit(const std::string& table, uint64_t epoch, int64_t version, uint64_t items_consumed);
  // Calls a method of the service, with request and response as JSON.
  std::string Call(const std::string& method, const std::string& request, double timeout_s);

  // Returns the connection. Raises if the client is closed, or if this process was forked.
  std::shared_ptr<ReplayConnection> Use() const;
  const std::shared_ptr<Gate>& gate() const { return gate_; }

 private:
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>("replay client");
  const double timeout_s_;
  std::shared_ptr<ReplayConnection> connection_;
};

// Returns (keys, probabilities, priorities, times sampled, min versions, max versions, items of the table,
// mass, committed version or None, [(name, dtype, shape of a step, steps, lengths or None, bytes), ...]). The
// arrays use the batch's memory and may be written to.
nanobind::tuple BatchToPython(replay::Batch batch);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_REPLAY_CLIENT_H_
