// SPDX-License-Identifier: Apache-2.0
// Tests elastic sessions. The processes are threads, and the test acts as their launcher.

#include "collectives/elastic/elastic_session.h"

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cluster/store/store_server.h"
#include "launcher/launcher_control.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

// The launcher of `size` processes on one node.
class Job {
 public:
  explicit Job(int size) : size_(size) { NewStore(); }

  void NewStore() { stores_.push_back(cluster::StoreServer::Start("127.0.0.1:0").value()); }
  Assignment Place(int64_t number, int rank) const {
    Assignment a;
    a.number = number;
    a.epoch = number;
    a.rank = a.local_rank = rank;
    a.world_size = a.local_world_size = size_;
    a.store = absl::StrCat("127.0.0.1:", stores_.back()->port());
    return a;
  }
  void NextRound(int64_t number, const std::string& why) {
    TANDEM_ASSERT_OK(control_.RoundOver(number - 1, why));
    NewStore();
    std::map<std::string, Assignment> places;
    for (int i = 0; i < size_; ++i) places[absl::StrCat("worker/", i)] = Place(number, i);
    TANDEM_ASSERT_OK(control_.Announce(places));
  }
  std::unique_ptr<LauncherClient> Child(int local_rank) const {
    return LauncherClient::Connect(absl::StrCat("127.0.0.1:", agent_->port()),
                                   absl::StrCat("worker/", local_rank))
        .value();
  }
  launcher::LauncherControl& control() { return control_; }

 private:
  const int size_;
  std::unique_ptr<cluster::StoreServer> agent_ = cluster::StoreServer::Start("127.0.0.1:0").value();
  launcher::LauncherControl control_{agent_->store()};
  std::vector<std::unique_ptr<cluster::StoreServer>> stores_;
};

// A model of one number, which is the number of steps done.
struct Process {
  int64_t model = 0;
  std::vector<int64_t> counted;
  absl::Status ended = absl::UnknownError("runs");

  ElasticOptions Options() {
    ElasticOptions options;
    options.save = [this] { return absl::StrCat(model); };
    options.load = [this](absl::string_view text) {
      return absl::SimpleAtoi(text, &model) ? absl::OkStatus() : absl::DataLossError("no number");
    };
    options.round_timeout = kLong;
    options.group.timeout = absl::Seconds(20);
    return options;
  }
  // Steps until `last`; `before` may end it before a step's collective.
  absl::Status Train(ElasticRound& round, int64_t last, const std::function<absl::Status(int64_t)>& before) {
    EXPECT_EQ(model, round.last_completed_step());
    for (int64_t step = round.last_completed_step() + 1; step <= last; ++step) {
      TANDEM_RETURN_IF_ERROR(before(step));
      std::vector<float> one{1.0f};
      TANDEM_RETURN_IF_ERROR(round.group()->AllReduce(absl::MakeSpan(one)).Wait());
      EXPECT_EQ(one[0], round.world_size());
      ++model;
      TANDEM_RETURN_IF_ERROR(round.CompleteStep(step));
      counted.push_back(step);
    }
    return absl::OkStatus();
  }
};

absl::Status Nothing(int64_t) { return absl::OkStatus(); }

TEST(ElasticSessionTest, WithoutAnAgentThereIsOneRound) {
  Assignment alone;
  Process process;
  ElasticSession session(process.Options(), alone, nullptr);
  EXPECT_THAT(session.Run([&](ElasticRound& round) {
    EXPECT_THAT(round.CompleteStep(2), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("step 2")));
    return process.Train(round, 3, Nothing);
  }),
              IsOk());
  EXPECT_EQ(process.counted.size(), 3u);
}

TEST(ElasticSessionTest, SurvivorsGoOnAndANewcomerGetsTheState) {
  constexpr int kSize = 3;
  constexpr int64_t kSteps = 30;
  Job job(kSize);
  Process processes[kSize + 1];
  std::atomic<int> troubles{0};
  absl::Mutex mutex;
  bool in_trouble = false;
  job.control().OnPeerFailure([&](launcher::LauncherControl::PeerFailure failure) {
    EXPECT_EQ(failure.number, 1);
    absl::MutexLock lock(&mutex);
    in_trouble = true;
  });
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kSize; ++rank) {
    threads.emplace_back([&, rank] {
      Process& me = processes[rank];
      ElasticSession session(me.Options(), job.Place(1, rank), job.Child(rank));
      me.ended = session.Run([&](ElasticRound& round) {
        return me.Train(round, kSteps, [&](int64_t step) -> absl::Status {
          if (rank != 2 || step != 12) return absl::OkStatus();
          return absl::InternalError("this process dies");  // its session and group go with it
        });
      });
    });
  }
  threads[2].join();
  EXPECT_THAT(processes[2].ended, StatusIs(absl::StatusCode::kInternal, HasSubstr("dies")));
  {
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&in_trouble), kLong)) << "nobody told the launcher";
  }
  job.NextRound(2, "worker/2 died");
  std::thread successor([&] {
    Process& me = processes[kSize];
    ElasticSession session(me.Options(), job.Place(2, 2), job.Child(2));
    me.ended = session.Run([&](ElasticRound& round) {
      EXPECT_EQ(round.last_completed_step(), 11);
      return me.Train(round, kSteps, Nothing);
    });
  });
  successor.join();
  for (int rank : {0, 1}) {
    threads[rank].join();
    TANDEM_EXPECT_OK(processes[rank].ended);
    EXPECT_EQ(processes[rank].model, kSteps);
    ASSERT_EQ(processes[rank].counted.size(), static_cast<size_t>(kSteps))
        << "a step was lost or counted twice";
    for (int64_t step = 1; step <= kSteps; ++step) EXPECT_EQ(processes[rank].counted[step - 1], step);
  }
  EXPECT_EQ(processes[kSize].counted.front(), 12);
}

TEST(ElasticSessionTest, ARoundThatTheLauncherEndsEndsARunningCollective) {
  Job job(2);
  Process processes[2];
  std::vector<std::thread> threads;
  absl::Mutex mutex;
  bool hangs = false;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Process& me = processes[rank];
      bool first = true;
      ElasticSession session(me.Options(), job.Place(1, rank), job.Child(rank));
      me.ended = session.Run([&](ElasticRound& round) {
        return me.Train(round, 6, [&](int64_t step) -> absl::Status {
          if (rank == 1 && step == 4 && std::exchange(first, false)) {
            {
              absl::MutexLock lock(&mutex);
              hangs = true;
            }
            // Rank 0 is in its collective. This rank does not join it before the round is over.
            std::vector<float> one{1.0f};
            absl::Status over = round.group()->Recv(absl::MakeSpan(one), 0).Wait();
            EXPECT_THAT(over,
                        StatusIs(absl::StatusCode::kAborted, HasSubstr("epoch 1 is over: node c joins")));
            return over;
          }
          return absl::OkStatus();
        });
      });
    });
  }
  {
    absl::MutexLock lock(&mutex);
    ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&hangs), kLong));
  }
  job.NextRound(2, "node c joins");
  for (int rank = 0; rank < 2; ++rank) {
    threads[rank].join();
    TANDEM_EXPECT_OK(processes[rank].ended);
    EXPECT_EQ(processes[rank].counted.size(), 6u);
  }
}

TEST(ElasticSessionTest, ALauncherThatEndsTheJobEndsIt) {
  Job job(1);
  Process process;
  ElasticSession session(process.Options(), job.Place(1, 0), job.Child(0));
  EXPECT_THAT(session.Run([&](ElasticRound& round) -> absl::Status {
    TANDEM_RETURN_IF_ERROR(job.control().Close("max_restarts 3 is used up"));
    TANDEM_RETURN_IF_ERROR(job.control().RoundOver(1, "node b is dead"));
    while (round.group()->error().ok()) TANDEM_RETURN_IF_ERROR(round.group()->Barrier().Wait());
    return round.group()->error();
  }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("max_restarts 3")));
}

TEST(ElasticSessionTest, AnErrorOfTheProgramEndsItAndStateThatCannotBeLoadedIsNamed) {
  Job job(1);
  Process process;
  ElasticSession session(process.Options(), job.Place(1, 0), job.Child(0));
  EXPECT_THAT(session.Run([&](ElasticRound&) { return absl::OutOfRangeError("no data"); }),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("no data")));
}

TEST(ElasticSessionTest, TheGreatestCheckpointCountsWhereNobodyIsLeft) {
  Job job(2);
  Process processes[2];
  processes[1].model = 7;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ElasticOptions options = processes[rank].Options();
      options.completed_step = processes[rank].model;
      ElasticSession session(std::move(options), job.Place(1, rank), job.Child(rank));
      processes[rank].ended =
          session.Run([&](ElasticRound& round) { return processes[rank].Train(round, 9, Nothing); });
    });
  }
  for (int rank = 0; rank < 2; ++rank) {
    threads[rank].join();
    TANDEM_EXPECT_OK(processes[rank].ended);
    EXPECT_THAT(processes[rank].counted, ::testing::ElementsAre(8, 9));
  }
}

}  // namespace
}  // namespace tandem::collectives
