// SPDX-License-Identifier: Apache-2.0
// A client that continues to write to a request's payload in shared memory while the server processes it.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/ipc/futex.h"
#include "base/random.h"
#include "ps/server/parameter_server.h"
#include "ps/table.h"
#include "rpc/connect.h"
#include "rpc/server.h"
#include "rpc/wire/bulk_codec.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

constexpr uint32_t kPayloadDim = 4, kPayloadIds = 3000, kBags = 500, kDenseRows = 1000;
constexpr absl::Duration kRace = absl::Milliseconds(400);
constexpr absl::Duration kPatience = absl::Seconds(30);  // until a call is served

class SharedPayloadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TANDEM_ASSERT_OK_AND_ASSIGN(listening_, rpc::Server::Start({}, {server_.service()}));
    TANDEM_ASSERT_OK_AND_ASSIGN(
        channel_, rpc::Connect(absl::StrCat("127.0.0.1:", listening_->port()), {.transport = "shm"}));
    v1::TableConfig sparse = EmbeddingTable("sparse", kPayloadDim, Sgd(0.01f), Uniform(-1, 1));
    v1::TableConfig dense = DenseTable("dense", kDenseRows * kPayloadDim, Sgd(0.01f), Constant(1));
    dense.set_dim(kPayloadDim);
    for (v1::TableConfig* config : {&sparse, &dense}) {
      *config->mutable_update_mode() = Async();
      config->set_num_workers(1);
      v1::CreateTableRequest request;
      *request.mutable_config() = *config;
      v1::CreateTableResponse response;
      TANDEM_ASSERT_OK(
          rpc::CallProto(*channel_, "/tandem.v1.ParameterServer/CreateTable", request, &response, {}));
    }
  }
  ~SharedPayloadTest() override {
    channel_.reset();
    server_.Stop();
    if (listening_ != nullptr) listening_->Shutdown(absl::ZeroDuration());
  }

  // Calls `method` repeatedly with this payload, while another thread changes its first `words` words of 32
  // bits. Every call must either succeed or be refused with a message.
  template <typename Header>
  void Race(const char* method, const std::function<Header(uint64_t)>& header, const std::string& payload,
            size_t words) {
    std::shared_ptr<char> memory = channel_->RequestMemory(payload.size());
    ASSERT_NE(memory, nullptr);
    std::atomic<bool> stop{false};
    // Atomics, so that this client's threads do not race with each other. The server reads through its own
    // mapping.
    auto* const shared = reinterpret_cast<std::atomic<uint32_t>*>(memory.get());
    const auto* const right = reinterpret_cast<const uint32_t*>(payload.data());
    std::thread vandal([&] {
      CounterRandom random(1, 1);
      while (!stop.load()) {
        const size_t at = random.Below(words);
        shared[at].store(static_cast<uint32_t>(random()));
        for (uint64_t pause = random.Below(2000); pause > 0; --pause) ipc::Pause();
        shared[at].store(right[at]);
        for (uint64_t pause = random.Below(4000); pause > 0; --pause) ipc::Pause();
      }
    });
    int served = 0, refused = 0;
    uint64_t sequence = 0;
    for (const absl::Time end = absl::Now() + kRace;
         absl::Now() < end || (served == 0 && absl::Now() < end + kPatience);) {
      for (size_t at = 0; at < payload.size() / sizeof(uint32_t); ++at) shared[at].store(right[at]);
      Bytes request = rpc::EncodeBulk(header(++sequence), Bytes(Slice(memory, memory.get(), payload.size())));
      const absl::StatusOr<Bytes> answer = channel_->Call(method, std::move(request), {});
      if (answer.ok()) {
        ++served;
      } else {
        ASSERT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument) << answer.status();
        ++refused;
      }
    }
    stop.store(true);
    vandal.join();
    EXPECT_GT(served, 0);
    EXPECT_EQ(channel_->transport(), "shm") << "the connection has held";
  }

  ParameterServer server_{ParameterServerOptions{}};
  std::unique_ptr<rpc::Server> listening_;
  std::unique_ptr<rpc::Channel> channel_;
};

std::string IdsAndOffsets(uint64_t below) {
  std::string payload;
  for (uint64_t i = 0; i < kPayloadIds; ++i) {
    const uint64_t id = i * 7 % below;
    payload.append(reinterpret_cast<const char*>(&id), sizeof(id));
  }
  for (uint32_t bag = 0; bag <= kBags; ++bag) {
    const uint32_t offset = kPayloadIds * bag / kBags;
    payload.append(reinterpret_cast<const char*>(&offset), sizeof(offset));
  }
  return payload;
}

template <typename Slice>
void Fill(Slice* slice, const std::string& table) {
  slice->set_table(table);
  slice->set_num_ids(kPayloadIds);
  slice->set_pooling(v1::SUM);
  slice->set_num_bags(kBags);
}

TEST_F(SharedPayloadTest, IdsAndOffsetsThatChangeDuringAPullDoNoHarm) {
  for (const char* table : {"sparse", "dense"}) {
    const std::string payload = IdsAndOffsets(kDenseRows);
    Race<v1::PullRequest>(
        "/tandem.v1.ParameterServer/Pull",
        [&](uint64_t) {
          v1::PullRequest header;
          Fill(header.add_slices(), table);
          return header;
        },
        payload, payload.size() / sizeof(uint32_t));
  }
}

TEST_F(SharedPayloadTest, IdsAndOffsetsThatChangeDuringAPushDoNoHarm) {
  for (const char* table : {"sparse", "dense"}) {
    const std::string counts = IdsAndOffsets(kDenseRows);
    const std::vector<float> gradients(kBags * kPayloadDim, 0.5f);
    const std::string payload = counts + std::string(reinterpret_cast<const char*>(gradients.data()),
                                                     gradients.size() * sizeof(float));
    static uint64_t epoch = 0;
    ++epoch;
    Race<v1::PushRequest>(
        "/tandem.v1.ParameterServer/Push",
        [&](uint64_t sequence) {
          v1::PushRequest header;
          header.set_epoch(epoch);
          header.set_sequence(sequence);
          v1::PushSlice* slice = header.add_slices();
          Fill(slice, table);
          slice->set_dim(kPayloadDim);
          return header;
        },
        payload, counts.size() / sizeof(uint32_t));
  }
}

}  // namespace
}  // namespace tandem::ps
