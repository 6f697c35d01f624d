// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_REPLAY_SERVER_REPLAY_PEER_H_
#define TANDEM_TESTS_REPLAY_SERVER_REPLAY_PEER_H_

// A replay server behind a loopback channel, and writers of one column "id".

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "replay/client/remote_replay.h"
#include "replay/client/writer.h"
#include "replay/server/replay_server.h"
#include "rpc/transport/loopback.h"

namespace tandem::replay::testing {

// Waits between retries that do not slow tests down.
inline constexpr rpc::BackoffOptions kFastBackoff = {.initial = absl::Milliseconds(1),
                                                     .max = absl::Milliseconds(5)};

// A channel whose server can be replaced by another one, like a process that starts again at the same
// address.
class ReplaceableServer {
 public:
  explicit ReplaceableServer(ReplayServerOptions options = {}, rpc::FaultInjector injector = nullptr)
      : options_(std::move(options)) {
    Restart();
    std::vector<rpc::Service> services = {server_->service()};
    for (rpc::Method& method : services[0].methods) {
      method.handler = [this, name = method.name](std::shared_ptr<rpc::ServerCall> call) {
        for (const rpc::Method& current : service_.methods) {
          if (current.name == name) return current.handler(std::move(call));
        }
      };
    }
    channel_ = rpc::ConnectLoopback(std::make_shared<const std::vector<rpc::Service>>(std::move(services)),
                                    std::move(injector), kFastBackoff);
  }
  // No call may be under way.
  void Restart() {
    server_.reset();
    auto server = ReplayServer::Make(options_);
    TANDEM_CHECK_MSG(server.ok(), server.status().ToString());
    server_ = *std::move(server);
    service_ = server_->service();
  }
  ReplayServer& server() { return *server_; }
  const std::shared_ptr<rpc::Channel>& channel() const { return channel_; }
  v1::ReplayTableInfo Info(const std::string& table) const {
    const v1::ListReplayTablesResponse state = server_->State();
    for (const v1::ReplayTableInfo& info : state.tables()) {
      if (info.options().name() == table) return info;
    }
    return {};
  }

 private:
  const ReplayServerOptions options_;
  std::unique_ptr<ReplayServer> server_;
  rpc::Service service_;
  std::shared_ptr<rpc::Channel> channel_;  // destroyed first
};

inline std::unique_ptr<Writer> IdWriter(Replay* replay, const std::string& name, uint32_t chunk_steps = 2) {
  auto writer = Writer::Create(replay, {{.name = "id", .dtype = DType::kI64}},
                               {.name = name, .chunk_steps = chunk_steps, .history_steps = 16});
  TANDEM_CHECK_MSG(writer.ok(), writer.status().ToString());
  return *std::move(writer);
}

// Appends a step and makes an item of it.
inline absl::Status WriteId(Writer& writer, const std::string& table, int64_t id,
                            absl::Time deadline = absl::InfiniteFuture()) {
  const std::vector<int64_t> value = {id};
  absl::Status status = writer.Append({value}, {}, deadline);
  status.Update(writer.CreateItem(table, 1.0, writer.Last(1), deadline));
  return status;
}

inline std::vector<int64_t> IdsOf(const Batch& batch) {
  const BatchColumn* const column = batch.Find("id");
  if (column == nullptr) return {};
  const auto values = column->values<int64_t>();
  return {values.begin(), values.end()};
}

}  // namespace tandem::replay::testing

#endif  // TANDEM_TESTS_REPLAY_SERVER_REPLAY_PEER_H_
