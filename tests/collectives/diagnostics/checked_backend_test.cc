// SPDX-License-Identifier: Apache-2.0
#include "collectives/diagnostics/checked_backend.h"

#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

constexpr absl::Duration kTimeout = absl::Seconds(60);

// Shared by the ranks of a test, which are its threads: an all_gather of bytes that names absent ranks.
class Hub {
 public:
  explicit Hub(int ranks) : mine_(ranks) {}
  // A round's time begins when `ranks` ranks have come.
  void StartTimeWith(int ranks) {
    absl::MutexLock lock(&mutex_);
    starts_with_ = ranks;
  }
  absl::Status AllGather(int rank, const Operation& o) {
    absl::MutexLock lock(&mutex_);
    const int round = round_;
    mine_[rank] = std::string(static_cast<const char*>(o.in.data), o.in.count);
    if (++came_ == static_cast<int>(mine_.size())) {
      all_ = mine_;
      came_ = 0;
      mine_.assign(mine_.size(), "");
      ++round_;
    }
    const auto over = [this, round] {
      mutex_.AssertReaderHeld();
      return round_ > round;
    };
    const auto begun = [this, &over] {
      mutex_.AssertReaderHeld();
      return over() || came_ >= starts_with_;
    };
    mutex_.Await(absl::Condition(&begun));
    if (!mutex_.AwaitWithTimeout(absl::Condition(&over), o.timeout)) {
      std::vector<int> absent;
      for (size_t i = 0; i < mine_.size(); ++i) {
        if (mine_[i].empty()) absent.push_back(static_cast<int>(i));
      }
      return absl::DeadlineExceededError(
          absl::StrCat("ranks ", absl::StrJoin(absent, ", "), " did not come"));
    }
    for (size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].size() != o.outs[i].count) return absl::InternalError("sizes differ");
      std::memcpy(o.outs[i].data, all_[i].data(), all_[i].size());
    }
    return absl::OkStatus();
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::string> mine_, all_;
  int came_ = 0, round_ = 0, starts_with_ = 0;
};

// The control backend on a hub or, without one, the wrapped backend, which only counts.
class FakeBackend final : public Backend {
 public:
  struct Log {
    std::vector<std::string> ran;
    absl::Status aborted;
  };
  FakeBackend(Hub* hub, int rank, Log* log) : hub_(hub), rank_(rank), log_(log) {}
  absl::string_view name() const override { return "fake"; }
  absl::Status Supports(const Operation&) const override { return absl::OkStatus(); }
  absl::Status Run(const Operation& o) override {
    if (hub_ != nullptr) return hub_->AllGather(rank_, o);
    log_->ran.push_back(Describe(o));
    return absl::OkStatus();
  }
  void StartPointToPoint(const Operation& o, Done done) override {
    log_->ran.push_back(Describe(o));
    done(o.root);
  }
  void Abort(const absl::Status& reason) override {
    if (log_ != nullptr) log_->aborted = reason;
  }

 private:
  Hub* const hub_;
  const int rank_;
  Log* const log_;
};

class CheckedBackendTest : public ::testing::Test {
 protected:
  explicit CheckedBackendTest(int ranks = 3) : hub_(ranks), logs_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      backends_.push_back(std::make_unique<CheckedBackend>(
          "g", rank, ranks, std::make_unique<FakeBackend>(nullptr, rank, &logs_[rank]),
          std::make_unique<FakeBackend>(&hub_, rank, nullptr)));
    }
  }
  std::vector<absl::Status> OnAll(const std::function<absl::Status(int rank, Backend&)>& body) {
    std::vector<absl::Status> results(backends_.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < backends_.size(); ++rank) {
      threads.emplace_back([&, rank] { results[rank] = body(static_cast<int>(rank), *backends_[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }
  static Operation AllReduce(uint64_t sequence, size_t count, absl::Duration timeout = kTimeout) {
    Operation o;
    o.kind = OpKind::kAllReduce;
    o.dtype = DType::kF32;
    o.sequence = sequence;
    o.in.count = o.out.count = count;
    o.timeout = timeout;
    return o;
  }

  Hub hub_;
  std::vector<FakeBackend::Log> logs_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

TEST_F(CheckedBackendTest, WhatRanksAgreeAboutIsRun) {
  for (const absl::Status& status : OnAll([](int, Backend& backend) -> absl::Status {
         for (uint64_t i = 0; i < 10; ++i) TANDEM_RETURN_IF_ERROR(backend.Run(AllReduce(i, 5)));
         return backend.Enqueue({AllReduce(10, 5), AllReduce(11, 6)}).status();
       })) {
    TANDEM_EXPECT_OK(status);
  }
  for (const FakeBackend::Log& log : logs_) EXPECT_EQ(log.ran.size(), 12u);
  EXPECT_EQ(backends_[0]->name(), "fake");
}

TEST_F(CheckedBackendTest, ADisagreementFailsAllRanksAlikeBeforeAnythingRuns) {
  const std::vector<absl::Status> results =
      OnAll([](int rank, Backend& backend) { return backend.Run(AllReduce(0, rank == 0 ? 8 : 5)); });
  for (const absl::Status& status : results) {
    // All ranks name rank 0 as the one that deviates.
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("rank 0 calls all_reduce #0 (sum of f32 x 8)"),
                                       HasSubstr("rank 1 calls all_reduce #0 (sum of f32 x 5)"))));
    EXPECT_EQ(status, results[0]);
  }
  for (FakeBackend::Log& log : logs_) {
    EXPECT_TRUE(log.ran.empty());
    EXPECT_EQ(log.aborted, results[0]);
  }
  // The group is broken: every call returns the same error at once.
  EXPECT_EQ(backends_[1]->Run(AllReduce(1, 5)), results[0]);
  EXPECT_EQ(backends_[1]->RunPointToPoint(Operation{.kind = OpKind::kSend}).status(), results[0]);
}

TEST_F(CheckedBackendTest, AnAbsentRankIsNamed) {
  hub_.StartTimeWith(2);
  const std::vector<absl::Status> results = OnAll([](int rank, Backend& backend) {
    return rank == 1 ? absl::OkStatus() : backend.Run(AllReduce(0, 5, absl::Milliseconds(30)));
  });
  for (int rank : {0, 2}) {
    EXPECT_THAT(results[rank], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                        AllOf(HasSubstr("ranks 1 did not come"), HasSubstr("all_reduce #0"),
                                              HasSubstr("'g'"))));
    EXPECT_TRUE(logs_[rank].ran.empty());
  }
}

TEST_F(CheckedBackendTest, UnevenCountsAreComparedByPair) {
  const auto all_to_all = [](int wrong) {
    return [wrong](int rank, Backend& backend) {
      std::vector<ConstPart> ins;
      std::vector<Part> outs;
      for (size_t other = 0; other < 3; ++other) {
        ins.push_back({nullptr, 10 * rank + other});
        outs.push_back({nullptr, 10 * other + rank + (rank == 2 && other == 1 ? wrong : 0)});
      }
      Operation o;
      o.kind = OpKind::kAllToAll;
      o.dtype = DType::kI32;
      o.even = false;
      o.ins = ins;
      o.outs = outs;
      o.timeout = kTimeout;
      return backend.Run(o);
    };
  };
  for (const absl::Status& status : OnAll(all_to_all(0))) TANDEM_EXPECT_OK(status);
  for (const absl::Status& status : OnAll(all_to_all(1))) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("rank 1 sends 12 elements to rank 2, which expects 13")));
  }
}

TEST_F(CheckedBackendTest, PointToPointPassesUnchecked) {
  Operation send;
  send.kind = OpKind::kSend;
  send.root = 2;
  TANDEM_ASSERT_OK_AND_ASSIGN(const int source, backends_[0]->RunPointToPoint(send));
  EXPECT_EQ(source, 2);
  TANDEM_EXPECT_OK(backends_[0]->Enqueue({send}));
  EXPECT_EQ(logs_[0].ran.size(), 2u);
}

TEST_F(CheckedBackendTest, AbortReachesBothAndStays) {
  backends_[0]->Abort(absl::AbortedError("enough"));
  backends_[0]->Abort(absl::AbortedError("again"));
  EXPECT_EQ(logs_[0].aborted, absl::AbortedError("enough"));
  EXPECT_EQ(backends_[0]->Run(AllReduce(0, 1)), absl::AbortedError("enough"));
}

}  // namespace
}  // namespace tandem::collectives
