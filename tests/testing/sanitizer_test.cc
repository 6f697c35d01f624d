// SPDX-License-Identifier: Apache-2.0
// Tests the sanitizer builds: errors must be reported, with the suppressions that all tests use, and
// synchronised code must not be. Without this, a suppression that hides everything would look like correct
// code.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "base/status.h"
#include "grpcpp/support/slice.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "rpc/server.h"

namespace tandem {
namespace {

// Each body runs in its own process, which ends with the report.
class SanitizerDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

#ifdef __SANITIZE_THREAD__

// Runs both concurrently, so that only a lock or a notification can order them.
template <typename First, typename Second>
void Together(First first, Second second) {
  std::thread thread(first);
  second();
  thread.join();
}

// Makes a call whose handler runs `body` on a gRPC thread.
void Serve(std::function<void()> body, std::function<void()> meanwhile) {
  auto server = rpc::Server::Start(
      {}, {rpc::Service{"test.Race",
                        {rpc::Method{"Run", rpc::Right::kRead, [body](std::shared_ptr<rpc::ServerCall> call) {
                                       body();
                                       call->Finish(Bytes());
                                     }}}}});
  TANDEM_CHECK(server.ok());
  auto channel = rpc::ConnectGrpc(absl::StrCat("127.0.0.1:", (*server)->port()), {});
  TANDEM_CHECK(channel.ok());
  rpc::CallOptions options;
  options.timeout = absl::Seconds(60);
  absl::Notification done;
  (*channel)->CallAsync("/test.Race/Run", Bytes(), options, [&](absl::StatusOr<Bytes>) { done.Notify(); });
  meanwhile();
  done.WaitForNotification();
}

TEST_F(SanitizerDeathTest, TwoThreadsThatWriteOneWordAreReported) {
  EXPECT_DEATH(
      {
        auto word = std::make_unique<int>(0);
        Together([&] { ++*word; }, [&] { ++*word; });
      },
      "ThreadSanitizer: data race");
}

TEST_F(SanitizerDeathTest, TwoThreadsThatCopyIntoOneBufferAreReported) {
  EXPECT_DEATH(
      {
        std::string to(4096, 'x');
        const std::string from(4096, 'y');
        Together([&] { memcpy(to.data(), from.data(), from.size()); },
                 [&] { memcpy(to.data(), from.data(), from.size()); });
      },
      "ThreadSanitizer: data race");
}

TEST_F(SanitizerDeathTest, AnAccessBesideTheMutexIsReported) {
  EXPECT_DEATH(
      {
        absl::Mutex mutex;
        auto word = std::make_unique<int>(0);
        Together(
            [&] {
              absl::MutexLock lock(&mutex);
              ++*word;
            },
            [&] { ++*word; });
      },
      "ThreadSanitizer: data race");
}

TEST_F(SanitizerDeathTest, AHandlerOnAThreadOfGrpcThatRacesIsReported) {
  EXPECT_DEATH(
      {
        auto word = std::make_unique<int>(0);
        Serve([&] { ++*word; }, [&] { ++*word; });
      },
      "ThreadSanitizer: data race");
}

TEST(SanitizerTest, MutexesConditionsAndNotificationsOrderWhatTheyGuard) {
  absl::Mutex mutex;
  auto word = std::make_unique<int>(0);
  auto result = std::make_unique<int>(0);
  absl::Notification done;
  const auto add = [&] {
    absl::MutexLock lock(&mutex);
    ++*word;
  };
  Serve(add, add);
  Together(
      [&] {
        absl::MutexLock lock(&mutex);
        ++*word;
        *result = 1;
      },
      [&] {
        absl::MutexLock lock(&mutex);
        const auto three = [&] { return *word == 3; };
        EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&three), absl::Seconds(60)));
        EXPECT_EQ(*result, 1);
      });
  Together(
      [&] {
        *result = 2;
        done.Notify();
      },
      [&] {
        EXPECT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(60)));
        EXPECT_EQ(*result, 2);
      });
}

TEST(SanitizerTest, ACounterOrdersEveryThreadThatCountsDown) {
  auto first = std::make_unique<int>(0);
  auto second = std::make_unique<int>(0);
  absl::BlockingCounter counter(2);
  std::thread one([&] {
    *first = 1;
    counter.DecrementCount();
  });
  std::thread two([&] {
    *second = 1;
    counter.DecrementCount();
  });
  counter.Wait();
  EXPECT_EQ(*first + *second, 2);
  one.join();
  two.join();
}

TEST(SanitizerTest, TheLastHolderOfASharedStatusFreesItInOrder) {
  for (int i = 0; i < 100; ++i) {
    auto first = std::make_unique<absl::Status>(absl::InternalError("shared"));
    auto second = std::make_unique<absl::Status>(*first);
    const auto drop = [](std::unique_ptr<absl::Status>* status) {
      EXPECT_EQ((*status)->message(), "shared");
      status->reset();
    };
    Together([&] { drop(&first); }, [&] { drop(&second); });
  }
}

// Requests of one connection can lie in one buffer of gRPC, which the last of their readers frees.
TEST(SanitizerTest, TheLastHolderOfABufferOfGrpcFreesItInOrder) {
  for (int i = 0; i < 100; ++i) {
    auto first = std::make_unique<grpc::Slice>(size_t{4096});
    std::memset(const_cast<uint8_t*>(first->begin()), 7, first->size());
    auto second = std::make_unique<grpc::Slice>(*first);
    const auto drop = [](std::unique_ptr<grpc::Slice>* slice) {
      EXPECT_EQ(*(*slice)->begin(), 7);
      slice->reset();
    };
    Together([&] { drop(&first); }, [&] { drop(&second); });
  }
}

#endif  // __SANITIZE_THREAD__

#ifdef __SANITIZE_ADDRESS__

TEST_F(SanitizerDeathTest, ReadingFreedMemoryIsReported) {
  EXPECT_DEATH(
      {
        auto word = std::make_unique<volatile int>(1);
        volatile int* const dangling = word.get();
        word.reset();
        *dangling = 2;
      },
      "AddressSanitizer: heap-use-after-free");
}

TEST_F(SanitizerDeathTest, ReadingPastABufferIsReported) {
  EXPECT_DEATH(
      {
        auto words = std::make_unique<volatile int[]>(4);
        volatile size_t index = 4;
        words[index] = 1;
      },
      "AddressSanitizer: heap-buffer-overflow");
}

TEST_F(SanitizerDeathTest, SignedOverflowIsReported) {
  EXPECT_DEATH(
      {
        volatile int most = std::numeric_limits<int>::max();
        most = most + 1;
      },
      "signed integer overflow");
}

TEST_F(SanitizerDeathTest, LostMemoryIsReported) {
  EXPECT_EXIT(
      {
        // Runs on another thread: its stack is not searched for pointers after it has ended.
        std::thread([] {
          for (int i = 0; i < 100; ++i) {
            char* volatile lost = new char[1000];
            lost[0] = 1;
          }
        }).join();
        std::exit(0);
      },
      [](int status) { return WIFEXITED(status) && WEXITSTATUS(status) != 0; },
      "LeakSanitizer: detected memory leaks");
}

#endif  // __SANITIZE_ADDRESS__

}  // namespace
}  // namespace tandem
