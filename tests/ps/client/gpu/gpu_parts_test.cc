// SPDX-License-Identifier: Apache-2.0
// Pulls into and pushes from the memory of GPUs, against GPUs in this process.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/timed_wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/client/client.h"
#include "ps/table.h"
#include "tests/base/cuda/fake_gpu.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::cuda::FakeGpu;
using ::tandem::testing::PsCluster;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kDim = 4;
constexpr absl::Duration kLong = absl::Seconds(60);

v1::TableConfig Table(const std::string& name, uint32_t dim = kDim) {
  v1::TableConfig config = EmbeddingTable(name, dim, Sgd(1.0f), Uniform(-1, 1));
  *config.mutable_update_mode() = Async();
  config.set_num_workers(1);
  return config;
}

std::vector<uint64_t> Ids(size_t count, uint64_t first = 0) {
  std::vector<uint64_t> ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = first + i;
  return ids;
}

// The end of an asynchronous pull.
struct Pulled {
  TimedNotification ended;
  absl::StatusOr<PullVersions> result;
  PullDone done() {
    return [this](absl::StatusOr<PullVersions> versions) {
      result = std::move(versions);
      ended.Notify();
    };
  }
};

class GpuPartsTest : public ::testing::Test {
 protected:
  ~GpuPartsTest() override {
    client_.reset();
    EXPECT_EQ(gpu_.pinned(), 0);
    EXPECT_EQ(gpu_.events(), 0);
    EXPECT_EQ(gpu_.streams(), static_cast<int>(program_streams_));
    EXPECT_THAT(gpu_.misuse(), IsEmpty());
  }
  Client& Connect(ClientOptions options = {}) {
    options.epoch = ++epoch_;
    if (options.cuda == nullptr) options.cuda = gpu_.api();
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(cluster_.Channels(), options);
    TANDEM_EXPECT_OK(client);
    client_ = *std::move(client);
    TANDEM_EXPECT_OK(client_->CreateTable(Table("t")));
    return *client_;
  }
  void* Stream(int gpu = 0) {
    ++program_streams_;
    return gpu_.NewStream(gpu);
  }
  // Returns the rows that a pull into host memory gives.
  std::vector<float> HostRows(const std::vector<uint64_t>& ids) {
    std::vector<float> rows(ids.size() * kDim);
    TANDEM_EXPECT_OK(client_->Pull(0, false, {{.table = "t", .ids = ids, .rows = rows.data()}}));
    return rows;
  }
  static PullPart ToGpu(const std::vector<uint64_t>& ids, float* rows,
                        std::optional<void*> stream = std::nullopt, int gpu = 0) {
    return {.table = "t", .ids = ids, .rows = rows, .device = Device::Cuda(gpu), .stream = stream};
  }
  static PushPart FromGpu(const std::vector<uint64_t>& ids, const float* gradients,
                          std::optional<void*> stream = std::nullopt, int gpu = 0) {
    PushPart part;
    part.table = "t";
    part.ids = ids;
    part.gradients = gradients;
    part.device = Device::Cuda(gpu);
    part.stream = stream;
    return part;
  }

  FakeGpu gpu_;
  size_t program_streams_ = 0;
  uint64_t epoch_ = 0;
  PsCluster cluster_{2};
  std::unique_ptr<Client> client_;
};

// The model: the same calls with arrays in host memory, on a table that begins with the same rows.
TEST_F(GpuPartsTest, PartsOnGpusDoWhatPartsInHostMemoryDo) {
  Client& client = Connect({.pinned_bytes = 64 << 10});
  for (const char* name : {"on_gpu", "model"}) {
    v1::TableConfig config = Table(name);
    config.set_seed(7);
    TANDEM_ASSERT_OK(client.CreateTable(config));
  }
  CounterRandom random(11, 0);
  void* const stream = Stream(1);
  for (uint64_t step = 0; step < 40; ++step) {
    // Up to 160 KiB: some calls fit into a region, others do not.
    std::vector<uint64_t> ids(random.Below(step % 4 == 0 ? 10000 : 300));
    for (uint64_t& id : ids) id = random.Below(5000);
    const v1::Pooling pooling = step % 3 == 0 ? v1::NONE : step % 3 == 1 ? v1::SUM : v1::MEAN;
    std::vector<uint32_t> offsets;
    if (pooling != v1::NONE) {
      for (uint32_t at = 0; at < ids.size(); at += static_cast<uint32_t>(random.Below(5)))
        offsets.push_back(at);
      if (offsets.empty()) offsets.push_back(0);
      offsets.push_back(static_cast<uint32_t>(ids.size()));
    }
    const size_t floats = (pooling == v1::NONE ? ids.size() : offsets.size() - 1) * kDim;
    const int gpu = static_cast<int>(step % 2);
    std::optional<void*> of_program;
    if (gpu == 1 && step % 4 == 1) of_program = stream;
    float* const rows = gpu_.Allocate(gpu, floats);
    std::vector<float> model_rows(floats);
    PullPart pull{.table = "model",
                  .ids = ids,
                  .rows = model_rows.data(),
                  .pooling = pooling,
                  .offsets = offsets,
                  .repeats = pooling == v1::NONE};
    PullPart gpu_pull = pull;
    gpu_pull.table = "on_gpu";
    gpu_pull.rows = rows;
    gpu_pull.device = Device::Cuda(gpu);
    gpu_pull.stream = of_program;
    TANDEM_ASSERT_OK(client.Pull(step, false, {pull, gpu_pull}));
    ASSERT_EQ(gpu_.Read(rows, floats), model_rows) << "step " << step;
    std::vector<float> gradients(floats);
    for (float& g : gradients) g = static_cast<float>(random.Below(16)) / 8 - 1;
    gpu_.Write(rows, gradients);
    PushPart push;
    push.table = "model";
    push.ids = ids;
    push.gradients = gradients.data();
    push.pooling = pooling;
    push.offsets = offsets;
    PushPart gpu_push = push;
    gpu_push.table = "on_gpu";
    gpu_push.gradients = rows;
    gpu_push.device = Device::Cuda(gpu);
    gpu_push.stream = of_program;
    TANDEM_ASSERT_OK(client.Push(step, {push, gpu_push}));
    gpu_.Free(rows);
  }
}

TEST_F(GpuPartsTest, APullWritesRowsAfterTheWorkOfItsStreamAndBeforeLaterWork) {
  Client& client = Connect();
  const std::vector<uint64_t> ids = Ids(50);
  const std::vector<float> expected = HostRows(ids);
  float* const rows = gpu_.Allocate(0, expected.size());
  const std::vector<float> old(expected.size(), 9.0f);
  gpu_.Write(rows, old);
  void* const stream = Stream();
  std::vector<float> read_before(expected.size()), read_after(expected.size());
  const auto reader_into = [&](std::vector<float>* to) {
    return gpu_.QueueKernel(stream, [=](const FakeGpu::Contents& contents) {
      std::copy_n(contents(rows), to->size(), to->data());
    });
  };
  const auto before = reader_into(&read_before);
  // The pull ends although its stream has not got to the copy.
  TANDEM_ASSERT_OK(client.Pull(0, false, {ToGpu(ids, rows, stream)}));
  EXPECT_EQ(gpu_.Read(rows, old.size()), old);
  const auto after = reader_into(&read_after);
  gpu_.Finish(after);
  gpu_.Finish(before);
  EXPECT_EQ(read_before, old);
  EXPECT_EQ(read_after, expected);
  gpu_.Free(rows);
}

TEST_F(GpuPartsTest, WithoutAStreamAPullEndsWhenTheRowsAreThere) {
  Client& client = Connect();
  const std::vector<uint64_t> ids = Ids(50);
  const std::vector<float> expected = HostRows(ids);
  float* const rows = gpu_.Allocate(0, expected.size());
  const auto kernel = gpu_.QueueKernel(nullptr);  // of the default stream
  Pulled pulled;
  client.PullAsync(0, false, {ToGpu(ids, rows)}, pulled.done());
  // Another call's rows pass it: the thread has looked at both.
  void* const stream = Stream(1);
  float* const others = gpu_.Allocate(1, expected.size());
  TANDEM_ASSERT_OK(client.Pull(0, false, {ToGpu(ids, others, stream, 1)}));
  EXPECT_EQ(gpu_.Read(others, expected.size()), expected);
  EXPECT_FALSE(pulled.ended.HasBeenNotified());
  gpu_.Finish(kernel);
  ASSERT_TRUE(pulled.ended.WaitFor(kLong));
  TANDEM_EXPECT_OK(pulled.result);
  EXPECT_EQ(gpu_.Read(rows, expected.size()), expected);
  gpu_.Free(rows);
  gpu_.Free(others);
}

TEST_F(GpuPartsTest, APushTakesGradientsAfterTheWorkThatProducesThem) {
  Client& client = Connect();
  const std::vector<uint64_t> ids = Ids(50);
  std::vector<float> expected = HostRows(ids);
  float* const gradients = gpu_.Allocate(0, expected.size());
  gpu_.Write(gradients, std::vector<float>(expected.size(), 100.0f));
  void* const stream = Stream();
  const auto backward = gpu_.QueueKernel(stream, [&](const FakeGpu::Contents& contents) {
    std::fill_n(contents(gradients), expected.size(), 0.5f);
  });
  std::atomic<bool> finished{false};
  std::thread pusher([&] {
    TANDEM_EXPECT_OK(client.Push(0, {FromGpu(ids, gradients, stream)}));
    EXPECT_TRUE(finished.load());
  });
  while (gpu_.copies() == 0) std::this_thread::yield();
  finished = true;
  gpu_.Finish(backward);
  pusher.join();
  for (float& value : expected) value -= 0.5f;
  EXPECT_EQ(HostRows(ids), expected);
  gpu_.Free(gradients);
}

TEST_F(GpuPartsTest, RowsLargerThanThePinnedMemoryGoThroughItInPieces) {
  Client& client = Connect({.pinned_bytes = 64 << 10});
  const std::vector<uint64_t> ids = Ids(20001);  // 312 KiB, in pieces of 8 KiB; the last one is shorter
  std::vector<float> expected = HostRows(ids);
  float* const rows = gpu_.Allocate(0, expected.size());
  TANDEM_ASSERT_OK(client.Pull(0, false, {ToGpu(ids, rows)}));
  EXPECT_EQ(gpu_.Read(rows, expected.size()), expected);
  EXPECT_EQ(gpu_.copies(), 40);
  gpu_.Write(rows, expected);  // as gradients
  TANDEM_ASSERT_OK(client.Push(0, {FromGpu(ids, rows)}));
  for (float& value : expected) value = 0;
  EXPECT_EQ(HostRows(ids), expected);
  EXPECT_EQ(gpu_.copies(), 80);
  gpu_.Free(rows);
}

TEST_F(GpuPartsTest, PinnedMemoryIsNotUsedAgainBeforeItsCopiesHaveEnded) {
  Client& client = Connect({.pinned_bytes = 64 << 10});
  constexpr size_t kCalls = 20;
  std::vector<std::vector<uint64_t>> ids;
  std::vector<std::vector<float>> expected;
  std::vector<float*> rows;
  for (size_t c = 0; c < kCalls; ++c) {
    ids.push_back(Ids(500, 1000 * c));  // 8 KB each: four of them fill the regions
    expected.push_back(HostRows(ids.back()));
    rows.push_back(gpu_.Allocate(0, expected.back().size()));
  }
  void* const stream = Stream();
  const auto kernel = gpu_.QueueKernel(stream);
  // Four calls fill the regions. They end at once; later ones wait until the stream gets to them.
  constexpr size_t kFirst = 4;
  for (size_t c = 0; c < kFirst; ++c)
    TANDEM_ASSERT_OK(client.Pull(0, false, {ToGpu(ids[c], rows[c], stream)}));
  std::vector<Pulled> pulled(kCalls);
  for (size_t c = kFirst; c < kCalls; ++c)
    client.PullAsync(0, false, {ToGpu(ids[c], rows[c], stream)}, pulled[c].done());
  gpu_.Finish(kernel);
  for (size_t c = kFirst; c < kCalls; ++c) {
    ASSERT_TRUE(pulled[c].ended.WaitFor(kLong));
    TANDEM_ASSERT_OK(pulled[c].result);
  }
  for (size_t c = 0; c < kCalls; ++c) {
    EXPECT_EQ(gpu_.Read(rows[c], expected[c].size()), expected[c]) << "call " << c;
    gpu_.Free(rows[c]);
  }
}

TEST_F(GpuPartsTest, RowsOfCachesReachTheGpu) {
  Client& client = Connect();
  TANDEM_ASSERT_OK(client.SetCache("t", {.bytes = 1 << 20}));
  TANDEM_ASSERT_OK(client.SetReadCache("t", {.bytes = 1 << 20}));
  const std::vector<uint64_t> ids = Ids(100);
  const std::vector<float> expected = HostRows(ids);
  float* const rows = gpu_.Allocate(0, expected.size());
  for (const bool read_only : {false, false, true, true}) {
    gpu_.Write(rows, std::vector<float>(expected.size(), 9.0f));
    TANDEM_ASSERT_OK(client.Pull(0, read_only, {ToGpu(ids, rows)}));
    EXPECT_EQ(gpu_.Read(rows, expected.size()), expected);
  }
  gpu_.Free(rows);
}

TEST_F(GpuPartsTest, ArraysThatAreNotOnTheGpuAreRefusedAndNothingIsSent) {
  Client& client = Connect();
  const std::vector<uint64_t> ids = Ids(10);
  const std::vector<float> before = HostRows(ids);
  std::vector<float> host(ids.size() * kDim, 1.0f);
  float* const device = gpu_.Allocate(0, host.size());
  float* const small = gpu_.Allocate(0, host.size() - 1);
  gpu_.Write(device, host);
  void* const stream = Stream();
  void* const captured = Stream();
  gpu_.Capture(captured, true);
  struct Case {
    float* memory;
    int gpu;
    std::optional<void*> stream;
    absl::StatusCode code;
    const char* text;
  };
  const absl::StatusCode invalid = absl::StatusCode::kInvalidArgument;
  for (const Case& c :
       {Case{host.data(), 0, {}, invalid, "host memory"}, Case{nullptr, 0, {}, invalid, "host memory"},
        Case{device, 1, {}, invalid, "are memory of GPU 0; expected 160 bytes of GPU 1"},
        Case{device, 2, {}, invalid, "expected a GPU from 0 to 1"},
        Case{device, -1, {}, invalid, "expected a GPU from 0 to 1"},
        Case{small, 0, {}, invalid, "too short; expected 160 bytes"},
        Case{device, 0, Stream(1), invalid, "is a stream of another GPU; expected one of GPU 0"},
        Case{device, 0, captured, absl::StatusCode::kFailedPrecondition, "CUDA graph"}}) {
    EXPECT_THAT(client.Pull(0, false, {ToGpu(ids, c.memory, c.stream, c.gpu)}),
                StatusIs(c.code, AllOf(HasSubstr("the rows of table 't'"), HasSubstr(c.text))));
    EXPECT_THAT(client.Push(0, {FromGpu(ids, c.memory, c.stream, c.gpu)}),
                StatusIs(c.code, AllOf(HasSubstr("the gradients of table 't'"), HasSubstr(c.text),
                                       HasSubstr("nothing was pushed to any server"))));
  }
  EXPECT_EQ(HostRows(ids), before);
  EXPECT_THAT(
      client.Pull(0, false, {{.table = "absent", .ids = ids, .rows = device, .device = Device::Cuda(0)}}),
      StatusIs(absl::StatusCode::kNotFound));
  gpu_.Capture(captured, false);
  TANDEM_EXPECT_OK(client.Pull(0, false, {ToGpu(ids, device, stream)}));
  EXPECT_EQ(gpu_.Read(device, before.size()), before);
  gpu_.Free(device);
  gpu_.Free(small);
}

TEST_F(GpuPartsTest, EachFailingCallOfCudaIsNamedAndTheClientStaysUsable) {
  const std::vector<uint64_t> small = Ids(10), large = Ids(4000);
  for (const char* call : {"cudaHostAlloc", "cudaStreamCreateWithFlags", "cudaEventCreateWithFlags",
                           "cudaEventRecord", "cudaStreamWaitEvent", "cudaMemcpyAsync", "cudaEventQuery"}) {
    for (const std::vector<uint64_t>& ids : {small, large}) {
      for (int after = 0; after < 6; ++after) {
        SCOPED_TRACE(absl::StrCat(call, " after ", after, ", ", ids.size(), " ids"));
        Client& client = Connect({.pinned_bytes = 64 << 10});
        std::vector<float> expected = HostRows(ids);
        float* const rows = gpu_.Allocate(0, expected.size());
        void* const stream = gpu_.NewStream(0);
        const auto named = [&](const absl::Status& status) {
          EXPECT_THAT(status,
                      StatusIs(std::string(call) == "cudaHostAlloc" ? absl::StatusCode::kResourceExhausted
                                                                    : absl::StatusCode::kInternal,
                               AllOf(HasSubstr(call), HasSubstr("CUDA: "))));
        };
        gpu_.Fail(call, after);
        const absl::Status pulled = client.Pull(0, false, {ToGpu(ids, rows, stream)}).status();
        // A failure may also concern what is left of an ended call, which only costs its stream.
        if (!gpu_.HasFailed()) {
          TANDEM_EXPECT_OK(pulled);
        } else if (!pulled.ok()) {
          named(pulled);
        }
        TANDEM_ASSERT_OK(client.Pull(0, false, {ToGpu(ids, rows)}));
        EXPECT_EQ(gpu_.Read(rows, expected.size()), expected);
        gpu_.Fail(call, after);
        const absl::Status pushed = client.Push(0, {FromGpu(ids, rows, stream)});
        if (!gpu_.HasFailed()) {
          TANDEM_EXPECT_OK(pushed);
        } else if (!pushed.ok()) {
          named(pushed);
        }
        if (pushed.ok()) std::fill(expected.begin(), expected.end(), 0.0f);
        EXPECT_EQ(HostRows(ids), expected);
        gpu_.Write(rows, expected);
        TANDEM_ASSERT_OK(client.Push(0, {FromGpu(ids, rows)}));
        std::fill(expected.begin(), expected.end(), 0.0f);
        EXPECT_EQ(HostRows(ids), expected);
        // The next client pulls other rows than zeros.
        const std::vector<float> ones(expected.size(), -1.0f);
        TANDEM_ASSERT_OK(client.Push(0, {{.table = "t", .ids = ids, .gradients = ones.data()}}));
        client_.reset();
        gpu_.DestroyStream(stream);
        gpu_.Free(rows);
        ASSERT_EQ(gpu_.pinned(), 0);
        ASSERT_EQ(gpu_.events(), 0);
        ASSERT_EQ(gpu_.streams(), 0);
      }
    }
  }
}

TEST_F(GpuPartsTest, CallsEndAtTheirDeadlineIfTheGpuDoesNotGetToThem) {
  Client& client = Connect({.timeout = absl::Seconds(2), .pinned_bytes = 64 << 10});
  const std::vector<uint64_t> ids = Ids(10), many = Ids(20000);
  const std::vector<float> expected = HostRows(ids);
  float* const rows = gpu_.Allocate(0, expected.size());
  float* const more = gpu_.Allocate(0, many.size() * kDim);
  void* const stream = Stream();
  const auto kernel = gpu_.QueueKernel(stream);
  const auto default_kernel = gpu_.QueueKernel(nullptr);
  EXPECT_THAT(client.Pull(0, false, {ToGpu(ids, rows)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("the rows of table 't'"), HasSubstr("GPU 0"),
                             HasSubstr("pulled, but not copied"))));
  EXPECT_THAT(client.Pull(0, false, {ToGpu(many, more, stream)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(client.Push(0, {FromGpu(ids, rows, stream)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("nothing was pushed")));
  EXPECT_EQ(HostRows(ids), expected);
  gpu_.Finish(kernel);
  gpu_.Finish(default_kernel);
  TANDEM_EXPECT_OK(client.Pull(0, false, {ToGpu(ids, rows)}));
  EXPECT_EQ(gpu_.Read(rows, expected.size()), expected);
  gpu_.Free(rows);
  gpu_.Free(more);
}

// A program may give the rows' memory back after an error; the pool that it came from orders its next use in
// the same stream.
TEST_F(GpuPartsTest, AfterAnErrorLaterWorkOfTheStreamWaitsForTheCopies) {
  Client& client = Connect({.timeout = absl::Seconds(1), .pinned_bytes = 64 << 10});
  const std::vector<uint64_t> ids = Ids(10), many = Ids(20000);
  const std::vector<float> other(many.size() * kDim, 9.0f);
  float* const rows = gpu_.Allocate(0, other.size());
  void* const per_thread = reinterpret_cast<void*>(uintptr_t{2});
  for (const std::vector<uint64_t>& pulled : {ids, many}) {
    for (const std::optional<void*> stream :
         {std::optional<void*>(), std::optional<void*>(per_thread), std::optional<void*>(Stream())}) {
      // Regions and pieces alike are under way at the deadline.
      if (stream.has_value() && *stream != per_thread && pulled.size() == ids.size())
        continue;  // ends at once
      gpu_.HoldCopies(true);
      EXPECT_THAT(client.Pull(0, false, {ToGpu(pulled, rows, stream)}),
                  StatusIs(absl::StatusCode::kDeadlineExceeded,
                           AllOf(HasSubstr("the rows of table 't'"), HasSubstr("GPU 0 still runs it"))));
      const auto writer = gpu_.QueueKernel(stream.value_or(nullptr), [&](const FakeGpu::Contents& contents) {
        std::copy_n(other.data(), other.size(), contents(rows));
      });
      gpu_.Finish(writer);
      gpu_.HoldCopies(false);
      EXPECT_EQ(gpu_.Read(rows, other.size()), other);
    }
  }
  client_.reset();
  gpu_.Free(rows);
}

TEST_F(GpuPartsTest, AStreamThatIsCapturedWhenAPullFailsDoesNotWait) {
  Client& client = Connect({.timeout = absl::Seconds(1)});
  const std::vector<uint64_t> ids = Ids(10);
  float* const rows = gpu_.Allocate(0, ids.size() * kDim);
  Pulled pulled;
  gpu_.HoldCopies(true);
  client.PullAsync(0, false, {ToGpu(ids, rows)}, pulled.done());
  gpu_.Capture(nullptr, true);
  ASSERT_TRUE(pulled.ended.WaitFor(kLong));
  EXPECT_THAT(pulled.result, StatusIs(absl::StatusCode::kDeadlineExceeded));
  gpu_.Capture(nullptr, false);
  gpu_.HoldCopies(false);
  TANDEM_EXPECT_OK(client.Pull(0, false, {ToGpu(ids, rows)}));
  client_.reset();
  gpu_.Free(rows);
}

// cudaStreamPerThread names another stream in each thread.
TEST_F(GpuPartsTest, APullWithThePerThreadStreamEndsWhenTheRowsAreThere) {
  Client& client = Connect({.pinned_bytes = 64 << 10});
  void* const per_thread = reinterpret_cast<void*>(uintptr_t{2});
  for (const size_t count : {size_t{50}, size_t{20000}}) {
    const std::vector<uint64_t> ids = Ids(count);
    const std::vector<float> expected = HostRows(ids);
    float* const rows = gpu_.Allocate(0, expected.size());
    std::vector<float> read_before(expected.size()), read_after(expected.size());
    const auto reader_into = [&](std::vector<float>* to) {
      return gpu_.QueueKernel(per_thread, [=](const FakeGpu::Contents& contents) {
        std::copy_n(contents(rows), to->size(), to->data());
      });
    };
    gpu_.Write(rows, std::vector<float>(expected.size(), 9.0f));
    const auto before = reader_into(&read_before);
    Pulled pulled;
    client.PullAsync(0, false, {ToGpu(ids, rows, per_thread)}, pulled.done());
    EXPECT_FALSE(pulled.ended.WaitFor(absl::Milliseconds(100)));
    gpu_.Finish(before);
    ASSERT_TRUE(pulled.ended.WaitFor(kLong));
    TANDEM_EXPECT_OK(pulled.result);
    gpu_.Finish(reader_into(&read_after));
    EXPECT_EQ(read_before, std::vector<float>(expected.size(), 9.0f));
    EXPECT_EQ(read_after, expected);
    // Gradients are read after the work of the caller's stream.
    const auto backward = gpu_.QueueKernel(per_thread, [&](const FakeGpu::Contents& contents) {
      std::fill_n(contents(rows), expected.size(), 0.5f);
    });
    // Finishes it when the push has begun to ask the GPU again and again.
    std::thread finisher([&, until = gpu_.calls() + 50] {
      const absl::Time deadline = MonotonicNow() + kLong;
      while (gpu_.calls() < until && MonotonicNow() < deadline) std::this_thread::yield();
      gpu_.Finish(backward);
    });
    TANDEM_EXPECT_OK(client.Push(0, {FromGpu(ids, rows, per_thread)}));
    finisher.join();
    std::vector<float> updated = expected;
    for (float& value : updated) value -= 0.5f;
    EXPECT_EQ(HostRows(ids), updated);
    gpu_.Free(rows);
  }
}

TEST_F(GpuPartsTest, CallsWhoseStreamsRunLateTakeNoPiecesFromOthers) {
  Client& client = Connect({.timeout = absl::Seconds(5), .pinned_bytes = 64 << 10});
  const std::vector<uint64_t> ids = Ids(20000);  // 312 KiB
  const std::vector<float> expected = HostRows(ids);
  std::vector<float*> rows;
  std::vector<std::shared_ptr<FakeGpu::Kernel>> kernels;
  std::vector<Pulled> late(2);
  for (int i = 0; i < 3; ++i) rows.push_back(gpu_.Allocate(0, expected.size()));
  for (size_t i = 0; i < late.size(); ++i) {
    void* const stream = Stream();
    kernels.push_back(gpu_.QueueKernel(stream));
    client.PullAsync(0, false, {ToGpu(ids, rows[i], stream)}, late[i].done());
  }
  // Gives the client time to receive the rows of the late calls.
  float* const small = gpu_.Allocate(0, kDim);
  TANDEM_EXPECT_OK(client.Pull(0, false, {ToGpu(Ids(1), small)}));
  TANDEM_EXPECT_OK(client.Pull(0, false, {ToGpu(ids, rows[2], Stream())}));
  EXPECT_EQ(gpu_.Read(rows[2], expected.size()), expected);
  for (const auto& kernel : kernels) gpu_.Finish(kernel);
  for (size_t i = 0; i < late.size(); ++i) {
    ASSERT_TRUE(late[i].ended.WaitFor(kLong));
    TANDEM_EXPECT_OK(late[i].result);
  }
  client_.reset();
  for (size_t i = 0; i < late.size(); ++i) EXPECT_EQ(gpu_.Read(rows[i], expected.size()), expected);
  for (float* memory : rows) gpu_.Free(memory);
  gpu_.Free(small);
}

TEST_F(GpuPartsTest, ACallThatGetsNoPinnedMemorySaysSo) {
  Client& client = Connect({.timeout = absl::Seconds(2), .pinned_bytes = 64 << 10});
  const std::vector<uint64_t> ids = Ids(20000);
  float* const rows = gpu_.Allocate(0, ids.size() * kDim);
  std::vector<Pulled> first(2);
  gpu_.HoldCopies(true);
  for (Pulled& pulled : first) client.PullAsync(0, false, {ToGpu(ids, rows)}, pulled.done());
  while (gpu_.copies() < 4) std::this_thread::yield();
  EXPECT_THAT(client.Pull(0, false, {ToGpu(ids, rows)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("the copies of other calls use all pinned memory")));
  for (Pulled& pulled : first) {
    ASSERT_TRUE(pulled.ended.WaitFor(kLong));
    EXPECT_THAT(pulled.result,
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("GPU 0 still runs it")));
  }
  gpu_.HoldCopies(false);
  client_.reset();
  gpu_.Free(rows);
}

TEST_F(GpuPartsTest, AWaitForGradientsCanBeCancelled) {
  Client& client = Connect({.go_on_waiting = [] { return false; }});
  const std::vector<uint64_t> ids = Ids(10);
  float* const gradients = gpu_.Allocate(0, ids.size() * kDim);
  void* const stream = Stream();
  const auto kernel = gpu_.QueueKernel(stream);
  EXPECT_THAT(client.Push(0, {FromGpu(ids, gradients, stream)}), StatusIs(absl::StatusCode::kCancelled));
  gpu_.Finish(kernel);
  gpu_.Free(gradients);
}

TEST_F(GpuPartsTest, AClientThatIsDestroyedEndsItsPulls) {
  Client& client = Connect();
  const std::vector<uint64_t> ids = Ids(10);
  float* const rows = gpu_.Allocate(0, ids.size() * kDim);
  const auto kernel = gpu_.QueueKernel(nullptr);
  Pulled pulled;
  client.PullAsync(0, false, {ToGpu(ids, rows)}, pulled.done());
  while (gpu_.copies() == 0) std::this_thread::yield();
  std::thread destroyer([&] { client_.reset(); });
  EXPECT_FALSE(pulled.ended.HasBeenNotified());
  gpu_.Finish(kernel);
  destroyer.join();
  EXPECT_TRUE(pulled.ended.HasBeenNotified());
  TANDEM_EXPECT_OK(pulled.result);
  gpu_.Free(rows);
}

TEST_F(GpuPartsTest, AMachineWithoutAGpuSaysSo) {
  FakeGpu none(0);
  Client& client = Connect({.cuda = none.api()});
  const std::vector<uint64_t> ids = Ids(10);
  std::vector<float> host(ids.size() * kDim);
  EXPECT_THAT(client.Pull(0, false, {ToGpu(ids, host.data())}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("the rows of table 't'"), HasSubstr("no CUDA device"))));
  TANDEM_EXPECT_OK(client.Pull(0, false, {{.table = "t", .ids = ids, .rows = host.data()}}));
}

TEST_F(GpuPartsTest, AClientWithoutPartsOnGpusCallsNoFunctionOfCuda) {
  Client& client = Connect();
  const std::vector<uint64_t> ids = Ids(100);
  const std::vector<float> rows = HostRows(ids);
  TANDEM_EXPECT_OK(client.Push(0, {{.table = "t", .ids = ids, .gradients = rows.data()}}));
  client_.reset();
  EXPECT_EQ(gpu_.calls(), 0);
  EXPECT_THAT(gpu_.contexts(), IsEmpty());
}

TEST_F(GpuPartsTest, NoContextIsMadeOnGpusThatNoPartNames) {
  Client& client = Connect();
  const std::vector<uint64_t> ids = Ids(10);
  float* const rows = gpu_.Allocate(1, ids.size() * kDim);
  // A thread without a current GPU has GPU 0, where cudaSetDevice would make a context.
  std::thread([&] { TANDEM_EXPECT_OK(client.Pull(0, false, {ToGpu(ids, rows, {}, 1)})); }).join();
  client_.reset();
  EXPECT_THAT(gpu_.contexts(), ::testing::ElementsAre(1));
  gpu_.Free(rows);
}

TEST_F(GpuPartsTest, TheAmountOfPinnedMemoryHasBounds) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{65535}, (uint64_t{16} << 30) + 1}) {
    EXPECT_THAT(Client::Connect(cluster_.Channels(), {.pinned_bytes = bytes}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("pinned_bytes")));
  }
}

}  // namespace
}  // namespace tandem::ps
