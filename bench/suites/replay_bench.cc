// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/replay_bench.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "bench/suites/server_process.h"
#include "replay/client/local_replay.h"
#include "replay/client/remote_replay.h"
#include "replay/client/sampler.h"
#include "replay/client/writer.h"

namespace tandem::bench {
namespace {

using replay::TableOptions;

constexpr uint32_t kPrefetch = 4;

class TandemReplay : public ReplayTarget {
 public:
  // `remote` is nullptr for tables in this process.
  TandemReplay(replay::Replay* replay, replay::RemoteReplay* remote) : replay_(*replay), remote_(remote) {}

  absl::Status Prepare(const ReplayCase& c) override {
    case_ = c;
    sampler_.reset();
    table_ = absl::StrCat(c.op, "/", c.bytes, "/", ++tables_);
    TANDEM_RETURN_IF_ERROR(replay_.CreateTable(c.op == "priorities"
                                                   ? TableOptions::Prioritized(table_, c.items, 1)
                                                   : TableOptions::Uniform(table_, c.items, 1)));
    replay::WriterOptions options = {
        .name = absl::StrCat("bench/", table_), .chunk_steps = ItemsOfInsert(c.bytes), .history_steps = 1};
    TANDEM_ASSIGN_OR_RETURN(
        writer_,
        replay::Writer::Create(
            &replay_, {{.name = "step", .dtype = DType::kU8, .shape = {static_cast<int64_t>(c.bytes)}}},
            options));
    step_.assign(c.bytes, 7);
    for (uint64_t i = 0; i < c.items; ++i) TANDEM_RETURN_IF_ERROR(Write());
    TANDEM_RETURN_IF_ERROR(writer_->Flush());
    if (c.op != "insert" && remote_ != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(sampler_, replay::Sampler::Create(remote_, {.name = options.name,
                                                                          .table = table_,
                                                                          .size = {.batch = c.per_call},
                                                                          .prefetch = kPrefetch}));
    }
    return absl::OkStatus();
  }

  absl::Status Call() override {
    if (case_.op == "insert") {
      for (uint32_t i = 0; i < case_.per_call; ++i) TANDEM_RETURN_IF_ERROR(Write());
      return absl::OkStatus();
    }
    TANDEM_ASSIGN_OR_RETURN(const replay::Batch batch, sampler_ == nullptr
                                                           ? replay_.Sample(table_, {.batch = case_.per_call})
                                                           : sampler_->Next());
    const auto values = batch.columns[0].values<uint8_t>();
    if (values.size() != case_.per_call * case_.bytes || values[0] != 7 || values[values.size() - 1] != 7) {
      return absl::InternalError("a batch has other values than were written");
    }
    if (case_.op == "sample") return absl::OkStatus();
    priorities_.clear();
    for (size_t i = 0; i < batch.size(); ++i) priorities_.push_back(random_.UniformDouble() + 0.01);
    return replay_.UpdatePriorities(table_, batch.keys, priorities_).status();
  }

 private:
  absl::Status Write() {
    TANDEM_RETURN_IF_ERROR(writer_->Append({step_}));
    return writer_->CreateItem(table_, std::nullopt, writer_->Last(1));
  }

  replay::Replay& replay_;
  replay::RemoteReplay* const remote_;
  ReplayCase case_;
  int tables_ = 0;
  std::string table_;
  std::unique_ptr<replay::Writer> writer_;
  std::unique_ptr<replay::Sampler> sampler_;
  std::vector<uint8_t> step_;
  std::vector<double> priorities_;
  CounterRandom random_{1, 2};
};

absl::Status MeasureCase(const ReplayCase& c, const ReplayFlags& flags, bool first) {
  if (c.transport == "in-process") {
    replay::LocalReplay replay;
    TandemReplay target(&replay, nullptr);
    return MeasureReplay(&target, c, flags, first);
  }
  // A server of its own for each case, so that none finds the memory of another.
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ServerProcess> server, ServerProcess::Start("replay"));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, server->Connect(c.transport == "shm"));
  replay::RemoteReplay replay(std::move(channel));
  TandemReplay target(&replay, &replay);
  return MeasureReplay(&target, c, flags, first);
}

}  // namespace

absl::Status RunReplayBench(const ReplayFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ReplayCase> cases, ReplayCasesOf(flags));
  for (const ReplayCase& c : cases) TANDEM_RETURN_IF_ERROR(MeasureCase(c, flags, &c == cases.data()));
  return absl::OkStatus();
}

}  // namespace tandem::bench
