// SPDX-License-Identifier: Apache-2.0
// Large arguments and results. They pass up to the limit, with a known number of copies in memory, and are
// refused beyond it, on either side, with an error that names the limit. TANDEM_LARGE_BYTES makes the ones
// that pass larger (2147483653 with the limit raised to that: 6 GB of memory).

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rpc/remote/rpc_agent.h"
#include "tests/rpc/remote/cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc::remote {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using testing::Cluster;
using ::testing::HasSubstr;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr size_t kDefaultBytes = size_t{32} << 20;
// Sanitizers keep freed memory, and have shadow memory.
constexpr bool kMemoryIsExact = false;
#else
constexpr size_t kDefaultBytes = size_t{256} << 20;
constexpr bool kMemoryIsExact = true;
#endif
// The memory of rings, windows, and data on its way.
constexpr size_t kOverheadBytes = size_t{96} << 20;
constexpr size_t kPage = 4096;
constexpr size_t kTwoGigabytes = size_t{2} << 30;

size_t LargeBytes() {
  const char* given = std::getenv("TANDEM_LARGE_BYTES");
  return given == nullptr ? kDefaultBytes - 5 : std::strtoull(given, nullptr, 10);
}
RpcAgentOptions Large() {
  return {.max_message_bytes = std::max(size_t{1} << 30, LargeBytes() + (size_t{1} << 20))};
}

constexpr Function<int64_t(Tensor)> kSizeOf{"size"};
constexpr Function<std::string(std::string)> kEndsSwapped{"ends_swapped"};
constexpr Function<bool(Tensor)> kCheck{"check"};
constexpr Function<Tensor(int64_t)> kMake{"make"};
constexpr Function<Tensor(int64_t)> kMakeUntouched{"make_untouched"};

// Returns VmRSS or VmHWM of the process in bytes.
size_t Memory(const std::string& which) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, which + ":"))
      return std::strtoull(line.c_str() + which.size() + 1, nullptr, 10) << 10;
  }
  return 0;
}

// The largest memory of the process since the construction, beyond its memory at the construction.
class Peak {
 public:
  Peak() {
    std::ofstream("/proc/self/clear_refs") << "5";  // resets VmHWM to VmRSS
    begin_ = Memory("VmRSS");
  }
  size_t bytes() const {
    const size_t peak = Memory("VmHWM");
    return peak - std::min(peak, begin_);
  }

 private:
  size_t begin_;
};

char PatternAt(size_t page) { return static_cast<char>(page * 7 + 1); }

// Each page contains its own number, so that chunks in a wrong order are detected.
Tensor Filled(size_t bytes) {
  Tensor tensor = Tensor::Allocate(DType::kU8, {static_cast<int64_t>(bytes)});
  char* const data = static_cast<char*>(tensor.mutable_data());
  for (size_t page = 0; page * kPage < bytes; ++page) {
    std::fill_n(data + page * kPage, std::min(kPage, bytes - page * kPage), PatternAt(page));
  }
  return tensor;
}
bool IsFilled(const Tensor& tensor) {
  const char* const data = static_cast<const char*>(tensor.data());
  for (size_t at = 0; at < tensor.bytes(); at += 64) {
    if (data[at] != PatternAt(at / kPage)) return false;
  }
  return tensor.bytes() == 0 || data[tensor.bytes() - 1] == PatternAt((tensor.bytes() - 1) / kPage);
}

// Memory that is allocated when it is first accessed.
Tensor Untouched(size_t bytes) {
  std::shared_ptr<char> memory(static_cast<char*>(std::calloc(bytes, 1)), [](char* p) { std::free(p); });
  return Tensor::Over(memory, DType::kU8, {static_cast<int64_t>(bytes)});
}

class RemoteLargeTest : public ::testing::TestWithParam<std::string> {
 protected:
  RemoteLargeTest() : cluster(GetParam()) {}

  Functions DefaultFunctions() {
    Functions functions;
    functions.Add(kSizeOf, [](const Tensor& tensor) { return static_cast<int64_t>(tensor.bytes()); });
    functions.Add(kCheck, [](const Tensor& tensor) { return IsFilled(tensor); });
    functions.Add(kMake, [](int64_t bytes) { return Filled(static_cast<size_t>(bytes)); });
    functions.Add(kEndsSwapped, [](std::string text) {
      std::swap(text.front(), text.back());
      return text;
    });
    functions.Add(kMakeUntouched, [](int64_t bytes) { return Untouched(static_cast<size_t>(bytes)); });
    return functions;
  }

  Cluster cluster;
};

INSTANTIATE_TEST_SUITE_P(Transports, RemoteLargeTest, ::testing::Values("grpc", "unix", "shm"),
                         [](const auto& info) { return info.param; });

TEST_P(RemoteLargeTest, AnArgumentOfAQuarterOfAGigabyteArrives) {
  RpcAgent& a = cluster.Add(DefaultFunctions(), Large());
  cluster.Add(DefaultFunctions(), Large());
  TANDEM_ASSERT_OK(a.RpcSync("worker/1", kSizeOf, Tensor()));
  const Tensor large = Filled(LargeBytes());
  const Peak peak;
  TANDEM_ASSERT_OK_AND_ASSIGN(const bool good, a.RpcSync("worker/1", kCheck, large));
  EXPECT_TRUE(good);
  // Copies beyond the caller's: the message as it arrived, and over shared memory also the joined message.
  // There each part is copied out of the ring at once, to make space for the next part.
  const size_t copies = GetParam() == "shm" ? 2 : 1;
  if (kMemoryIsExact) {
    EXPECT_LT(peak.bytes(), copies * LargeBytes() + kOverheadBytes);
  }
}

TEST_P(RemoteLargeTest, AResultOfAQuarterOfAGigabyteArrives) {
  RpcAgent& a = cluster.Add(DefaultFunctions(), Large());
  cluster.Add(DefaultFunctions(), Large());
  TANDEM_ASSERT_OK(a.RpcSync("worker/1", kSizeOf, Tensor()));
  const Peak peak;
  TANDEM_ASSERT_OK_AND_ASSIGN(const Tensor large,
                              a.RpcSync("worker/1", kMake, static_cast<int64_t>(LargeBytes())));
  EXPECT_TRUE(IsFilled(large));
  // The function's copy and the caller's copy. Over shared memory the latter is copied once more when its
  // chunks are joined; by then the function's copy has been freed.
  if (kMemoryIsExact) {
    EXPECT_LT(peak.bytes(), 2 * LargeBytes() + kOverheadBytes);
  }
}

TEST_P(RemoteLargeTest, ALongStringGoesThereAndBack) {
  RpcAgent& a = cluster.Add(DefaultFunctions(), Large());
  cluster.Add(DefaultFunctions(), Large());
  const size_t bytes = LargeBytes() > kDefaultBytes ? LargeBytes() : kDefaultBytes / 8;
  std::string text(bytes, 'x');
  text.front() = 'a';
  text.back() = 'z';
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string back, a.RpcSync("worker/1", kEndsSwapped, std::move(text)));
  ASSERT_EQ(back.size(), bytes);
  EXPECT_EQ(back.front(), 'z');
  EXPECT_EQ(back.back(), 'a');
}

TEST_P(RemoteLargeTest, ArgumentsOf2GigabytesAreRefusedAtTheCaller) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  cluster.Add(DefaultFunctions());
  EXPECT_THAT(a.RpcSync("worker/1", kSizeOf, Untouched(kTwoGigabytes)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("worker/1: size: an argument list of 21474836"),
                             HasSubstr(" bytes is more than worker/0's limit of 1073741824: "),
                             HasSubstr(kTooLargeRemedy))));
  TANDEM_EXPECT_OK(a.RpcSync("worker/1", kSizeOf, Tensor()));
}

TEST_P(RemoteLargeTest, AResultOf2GigabytesIsRefusedAtTheCallee) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  cluster.Add(DefaultFunctions());
  EXPECT_THAT(a.RpcSync("worker/1", kMakeUntouched, kTwoGigabytes),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("worker/1: make_untouched: a result of 21474836"),
                             HasSubstr(" bytes is more than worker/1's limit of 1073741824: "),
                             HasSubstr(kTooLargeRemedy))));
  TANDEM_EXPECT_OK(a.RpcSync("worker/1", kSizeOf, Tensor()));
}

TEST_P(RemoteLargeTest, WhoTakesLessThanTheOtherSendsIsNamed) {
  RpcAgent& a = cluster.Add(DefaultFunctions(), {.max_message_bytes = 1 << 20});
  RpcAgent& b = cluster.Add(DefaultFunctions(), {.max_message_bytes = 8 << 20});
  EXPECT_THAT(a.RpcSync("worker/1", kMake, 2 << 20),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("worker/1: make: a result of 20971"),
                             HasSubstr(" bytes is more than worker/0's limit of 1048576: "),
                             HasSubstr(kTooLargeRemedy))));
  EXPECT_THAT(b.RpcSync("worker/0", kSizeOf, Untouched(2 << 20)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("worker/0: size: an argument list of 20971"), HasSubstr(" 1048576"),
                             HasSubstr("max_message_bytes"), HasSubstr(kTooLargeRemedy))));
  TANDEM_EXPECT_OK(a.RpcSync("worker/1", kSizeOf, Tensor()));
  TANDEM_EXPECT_OK(b.RpcSync("worker/0", kSizeOf, Tensor()));
}

TEST_P(RemoteLargeTest, WithinAProcessThereIsNoLimit) {
  RpcAgent& a = cluster.Add(DefaultFunctions());
  TANDEM_ASSERT_OK_AND_ASSIGN(const int64_t size, a.RpcSync("worker/0", kSizeOf, Untouched(kTwoGigabytes)));
  EXPECT_EQ(size, static_cast<int64_t>(kTwoGigabytes));
}

}  // namespace
}  // namespace tandem::rpc::remote
