// SPDX-License-Identifier: Apache-2.0
// Runs a paced table with actors and a learner that do random things, next to a model that keeps plain lists:
// no item is used later than max_lag commits after its admission, everything admitted is accounted for, and
// the job never comes to a standstill.

#include <deque>
#include <map>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "replay/table/table.h"
#include "tests/replay/items.h"
#include "tests/testing/status_matchers.h"

namespace tandem::replay {
namespace {

const absl::Time kNoWait = absl::InfinitePast();

struct Job {
  explicit Job(const StalenessOptions& staleness) : options(staleness) {
    TableOptions table_options = TableOptions::PacedQueue("queue", staleness.batch, staleness.max_lag,
                                                          staleness.every, staleness.slow);
    table_options.staleness = staleness;
    auto created = Table::Create(table_options, &clock);
    TANDEM_CHECK_MSG(created.ok(), created.status().ToString());
    table = *created;
  }

  struct Running {
    Ticket ticket;
    uint64_t commit = 0;
    absl::Time granted, end;
  };

  absl::Status Commit() {
    const absl::Status status =
        table->Commit({.epoch = epoch, .version = ++version, .items_consumed = items_consumed});
    if (status.ok()) ++commits;
    return status;
  }
  void EndLeases() {
    std::erase_if(running, [&](const auto& entry) { return entry.second.end <= clock.Now(); });
  }
  uint64_t TakenPlaces() const { return running.size() + table->Info().items; }

  const StalenessOptions options;
  SimulatedClock clock;
  std::shared_ptr<Table> table;
  std::map<int64_t, Running> running;    // by the id of the item to come
  std::map<int64_t, uint64_t> admitted;  // the commit of each item's admission
  std::deque<int64_t> sampled;           // by the learner, not used yet
  uint64_t epoch = 1, commits = 0, items_consumed = 0, updates = 0;
  uint64_t position = 0, consumed_position = 0;  // of samples; at the last commit
  int64_t version = 0, next_id = 1;
  bool resumed = false;
};

StalenessOptions RandomStaleness(CounterRandom& random) {
  return {.kind = StalenessKind::kPace,
          .max_lag = static_cast<uint32_t>(random.Below(4)),
          .batch = static_cast<uint32_t>(1 + random.Below(4)),
          .every = static_cast<uint32_t>(1 + random.Below(3)),
          .slow = static_cast<SlowRollouts>(random.Below(3)),
          .lease = absl::Seconds(10),
          .max_rollout = absl::Seconds(40)};
}

class PaceModel : public ::testing::TestWithParam<uint64_t> {};

TEST_P(PaceModel, BoundsTheLagAndNeverStandsStill) {
  CounterRandom random(GetParam(), 5);
  for (int round = 0; round < 30; ++round) {
    Job job(RandomStaleness(random));
    const StalenessOptions& o = job.options;
    const bool resumes = random.Below(3) == 0;
    uint64_t used = 0;
    TANDEM_ASSERT_OK(job.Commit());
    for (int step = 0; step < 600; ++step) {
      const uint64_t action = random.Below(100);
      job.EndLeases();
      if (action < 25) {
        const auto count = static_cast<uint32_t>(1 + random.Below(std::min<uint64_t>(3, o.window())));
        const auto tickets = job.table->Admit({.actor = "actor", .count = count}, kNoWait);
        // The formula, with the lists of the model. With kWait and kDrop, rollouts that are too late have
        // ended, which the model knows from the table.
        if (o.slow == SlowRollouts::kTake) {
          const bool may = job.position + job.TakenPlaces() + count <= job.consumed_position + o.window();
          ASSERT_EQ(tickets.ok(), may) << tickets.status();
        }
        if (!tickets.ok()) continue;
        for (const Ticket& ticket : *tickets) {
          ASSERT_EQ(ticket.min_version, job.version);
          job.admitted[job.next_id] = job.commits;
          job.running[job.next_id++] = {.ticket = ticket,
                                        .commit = job.commits,
                                        .granted = job.clock.Now(),
                                        .end = job.clock.Now() + o.lease};
        }
      } else if (action < 55 && !job.running.empty()) {
        auto chosen = job.running.begin();
        std::advance(chosen, static_cast<ptrdiff_t>(random.Below(job.running.size())));
        NewItem item = testing::IdItem(chosen->first);
        auto trajectory = std::make_shared<Trajectory>(*item.trajectory);
        trajectory->min_version = trajectory->max_version = chosen->second.ticket.min_version;
        item.trajectory = std::move(trajectory);
        item.ticket = chosen->second.ticket.id;
        std::vector<NewItem> items;
        items.push_back(std::move(item));
        const absl::Status status = job.table->Insert(std::move(items), "actor", kNoWait);
        // Only a rollout that would be too old may have ended before its lease.
        if (o.slow == SlowRollouts::kTake) {
          TANDEM_ASSERT_OK(status);
        }
        ASSERT_TRUE(status.ok() || absl::IsNotFound(status)) << status;
        job.running.erase(chosen);
      } else if (action < 75) {
        const auto sample = job.table->SampleItems({.batch = o.batch}, "learner", kNoWait);
        if (!sample.ok()) continue;
        job.position += o.batch;
        for (const int64_t id : testing::IdsOf(*sample)) job.sampled.push_back(id);
      } else if (action < 90) {
        if (job.sampled.size() < o.batch) continue;
        for (uint32_t i = 0; i < o.batch; ++i) {
          const uint64_t lag = job.commits - job.admitted[job.sampled.front()];
          if (o.slow != SlowRollouts::kTake) {
            ASSERT_LE(lag, o.max_lag) << "item " << job.sampled.front();
          }
          job.sampled.pop_front();
          ++used;
        }
        job.items_consumed += o.batch;
        if (++job.updates % o.every == 0) {
          job.consumed_position += uint64_t{o.batch} * o.every;
          TANDEM_ASSERT_OK(job.Commit());
        }
      } else if (action < 96) {
        job.clock.Advance(absl::Seconds(random.Below(8)));
        for (auto& [id, running] : job.running) {
          if (running.end <= job.clock.Now() || random.Below(2) == 0) continue;
          const bool in_use = job.table->Renew({running.ticket.id}) == 1;
          if (o.slow == SlowRollouts::kTake) {
            ASSERT_TRUE(in_use);
          }
          running.end = std::min(job.clock.Now() + o.lease, running.granted + o.max_rollout);
        }
      } else if (action < 98 && resumes) {  // the learner dies, and resumes from an earlier state
        job.sampled.clear();
        job.resumed = true;
        ++job.epoch;
        job.items_consumed -= std::min<uint64_t>(job.items_consumed, random.Below(20));
        job.updates = 0;
        job.consumed_position = job.position;
        TANDEM_ASSERT_OK(job.Commit());
      } else if (action == 98 && resumes) {  // the table's server dies after a checkpoint
        TANDEM_ASSERT_OK_AND_ASSIGN(job.table, Table::Restore(job.table->Snapshot(), &job.clock));
        job.running.clear();
        job.resumed = true;
      }
      const TableInfo info = job.table->Info();
      const Pace::Counts& tickets = info.staleness.tickets;
      if (!job.resumed) {
        ASSERT_EQ(tickets.admitted,
                  info.staleness.running + tickets.expired + tickets.returned + info.total_inserts);
        ASSERT_EQ(info.total_inserts, info.items + info.total_samples + info.removals.stale);
        if (o.slow == SlowRollouts::kWait) {
          ASSERT_EQ(info.removals.stale, 0u);
        }
      }
      ASSERT_LE(info.items + info.staleness.running, o.window());
    }
    // Once all rollouts have ended, one of learner and actors can go on, also if the actor asks for many
    // tickets.
    job.clock.Advance(o.max_rollout);
    job.EndLeases();
    const bool can_update = job.sampled.size() >= o.batch;
    const auto count = static_cast<uint32_t>(1 + random.Below(o.window()));
    absl::StatusOr<std::vector<Ticket>> granted;
    const uint64_t admission = job.table->StartAdmit(
        {.actor = "actor", .count = count},
        [&granted](absl::StatusOr<std::vector<Ticket>> tickets) { granted = std::move(tickets); });
    const bool can_sample = job.table->SampleItems({.batch = o.batch}, "learner", kNoWait).ok();
    job.table->Expire(admission);
    EXPECT_TRUE(can_update || can_sample || granted.ok())
        << granted.status() << "; " << job.table->Info().why_no_sample;
    EXPECT_GT(used, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PaceModel, ::testing::Range<uint64_t>(1, 6));

}  // namespace
}  // namespace tandem::replay
